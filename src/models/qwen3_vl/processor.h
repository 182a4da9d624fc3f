#pragma once

#include <string>
#include <vector>

#include "models/qwen2_vl/grid_processor.h"
#include "models/qwen3_vl/config.h"
#include "models/qwen3_vl/video_processor.h"

namespace vlmtrain::models::qwen3_vl {

/// What stands for a video of such time stamps: for each pair of frames its stamp, then its `tokens_per_timestamp`
/// tokens between <|vision_start|> and <|vision_end|>.
std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_timestamp);

/// Qwen3VLProcessor of transformers.
class Processor final : public qwen2_vl::GridProcessor {
 public:
  Processor(const Config& config, qwen2_vl::PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
            text::ChatTemplate chat_template, const ProcessorSettings& settings);

 private:
  std::vector<int64_t> select_frames(const image::VideoInfo& info) const override;
  image::ImageSize frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  int64_t min_frame_pixels() const override { return 1; }
  image::Filter frame_filter() const override { return videos_.pixels.filter; }
  void check_video(const image::VideoInfo& info) const override;
  MediaLayout layout_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  int64_t count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override;
  std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const override;

  VisionConfig vision_;
  VideoSettings videos_;
};

}  // namespace vlmtrain::models::qwen3_vl
