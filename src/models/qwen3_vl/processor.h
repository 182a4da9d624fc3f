#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "models/qwen3_vl/model.h"

namespace vlmtrain::models::qwen3_vl {

/// What a checkpoint says about videos (Qwen3VLVideoProcessor of transformers 5.23). Pixels are budgeted over all
/// frames that are looked at.
struct VideoSettings {
  qwen2_vl::PixelSettings pixels;                         ///< `budget`: of all frames together
  std::optional<int64_t> max_frame_pixels;                ///< data.image_max_pixels
  qwen2_vl::FrameLimits limits{.max_video_tokens = 768};  ///< of a frame, where it is capped

  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            std::optional<int64_t> max_pixels);

  /// Which frames are looked at, with data.video_fps `sampling_fps`, at least one: all of a list of no more than
  /// max_listed_frames, num_frames where the file has it (a video of fewer has frames that come twice), else as
  /// sample(). Throws UserError (kBadData) as qwen2_vl::check_frame_limits.
  std::vector<int64_t> select_frames(const image::VideoInfo& video, double sampling_fps) const;

  /// Which of a video's `frames` are taken, with `video_fps` of them a second and `sampling_fps` wanted: evenly from
  /// the first to the last.
  std::vector<int64_t> sample(int64_t frames, double video_fps, double sampling_fps) const;

  /// What so many frames of `size` are resized to. `max_pixels` limits each, beside what the settings say.
  image::ImageSize frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels,
                              const VisionConfig& vision) const;
};

/// Writes a limit of a frame's pixels into the settings of a Qwen3VLVideoProcessor, which has one of a frame's tokens.
/// False, with nothing written, where that cannot be the same: not whole tokens, or fewer than 1.05 times the least
/// pixels of a video. `settings`: as the file has them, with the limit.
bool write_frame_limit(nlohmann::ordered_json& file, const VideoSettings& settings, const VisionConfig& vision);

/// What is written before the patches of each pair of frames: `<1.5 seconds>`, the mean of its first and last frame's
/// time. `frame_indices` as VideoSettings::sample, the last one repeated until all pairs are full.
std::vector<std::string> make_timestamps(const std::vector<int64_t>& frame_indices, double video_fps,
                                         int64_t frames_per_patch);

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
