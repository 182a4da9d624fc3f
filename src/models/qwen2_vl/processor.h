#pragma once

#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/grid_processor.h"
#include "models/qwen2_vl/video_processor.h"

namespace vlmtrain::models::qwen2_vl {

/// Qwen2VLProcessor and Qwen2_5_VLProcessor of transformers: the tokens of an image stand between <|vision_start|> and
/// <|vision_end|>. So do those of a video, two frames of which make a patch.
class Processor final : public GridProcessor {
 public:
  Processor(const Config& config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, const ProcessorSettings& settings);

 private:
  std::vector<int64_t> select_frames(const image::VideoInfo& info) const override;
  image::ImageSize frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  int64_t min_frame_pixels() const override { return videos_.pixels.budget.min_pixels; }
  image::Filter frame_filter() const override { return videos_.pixels.filter; }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const override;

  std::optional<int64_t> tokens_per_second_;
  VideoSettings videos_;
  data::VideoLayout layout_;
};

}  // namespace vlmtrain::models::qwen2_vl
