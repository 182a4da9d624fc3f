#pragma once

#include <string>

#include "models/gemma3/config.h"
#include "models/gemma3/image_processor.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::gemma3 {

inline constexpr std::string_view kStartOfImage = "<start_of_image>";
inline constexpr std::string_view kImageToken = "<image_soft_token>";
inline constexpr std::string_view kEndOfImage = "<end_of_image>";

/// What stands for a picture in the text: marks, its tokens and line breaks, once for the whole and once for each crop.
std::string format_image_text(int64_t image_tokens, int64_t crops);

/// Gemma3Processor of transformers.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;

  Config config_;
  ImageProcessorSettings images_;
};

}  // namespace vlmtrain::models::gemma3
