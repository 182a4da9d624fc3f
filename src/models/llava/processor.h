#pragma once

#include "models/llava/config.h"
#include "models/llava/image_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::llava {

/// LlavaProcessor of transformers: each image is one tile and so many `<image>` tokens. In the original layout the
/// tokenizer never sees an image: the texts between images are tokenized one by one, as LLaVA's own code does.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings, std::optional<MaskInput> masks);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;
  EncodedChat encode_text_segments(const text::RenderedChat& chat, size_t images) const;

  Config config_;
  ImageProcessorSettings images_;
};

}  // namespace vlmtrain::models::llava
