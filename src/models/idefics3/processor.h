#pragma once

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::idefics3 {

/// Idefics3Processor of transformers: each image becomes its tiles in the text (models/idefics3/image_text.h).
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings);

 private:
  ImagePlan plan(image::ImageSize size) const override;
  at::Tensor pixels_of(const at::Tensor& image) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const override;

  Config config_;
  ImageProcessor images_;
};

}  // namespace vlmtrain::models::idefics3
