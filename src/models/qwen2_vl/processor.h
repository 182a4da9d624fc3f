#pragma once

#include "models/conversation_processor.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"

namespace vlmtrain::models::qwen2_vl {

/// Qwen2VLProcessor and Qwen2_5_VLProcessor of transformers: an image becomes as many tokens as it has squares of
/// merge_size² patches, between <|vision_start|> and <|vision_end|>.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, PixelSettings images, text::Tokenizer tokenizer, ProcessorSettings settings);

 private:
  ImagePlan plan(image::ImageSize size) const override;
  at::Tensor tiles_of(const at::Tensor& image) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const override;
  std::vector<int64_t> position_ids(const EncodedChat& chat, std::span<const ImagePlan> images) const override;

  ImagePlan plan(data::TileGrid grid, std::string_view pad) const;

  Config config_;
  PixelSettings images_;
};

}  // namespace vlmtrain::models::qwen2_vl
