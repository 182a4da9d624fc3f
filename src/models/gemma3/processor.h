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
std::string image_text(int64_t image_tokens, int64_t crops);

/// Gemma3Processor of transformers.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings);

 private:
  ImagePlan plan(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<SeenPicture> pictures_in(const at::Tensor& rows, const ImagePlan& medium, image::ImageSize size,
                                       std::optional<int64_t> max_pixels) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const override;

  Config config_;
  ImageProcessorSettings images_;
};

}  // namespace vlmtrain::models::gemma3
