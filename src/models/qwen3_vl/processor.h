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

/// Video settings of a checkpoint (Qwen3VLVideoProcessor of transformers 5.23). The pixel budget
/// covers all used frames together.
struct VideoSettings {
  qwen2_vl::PixelSettings pixels;                         ///< `budget`: of all frames together
  std::optional<int64_t> max_frame_pixels;                ///< data.image_max_pixels
  qwen2_vl::FrameLimits limits{.max_video_tokens = 768};  ///< per frame with a cap

  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            std::optional<int64_t> max_pixels);

  /// Returns the indices of the frames to use, at least one, at `sampling_fps` (data.video_fps):
  /// all of a list of at most max_listed_frames, num_frames if the file has it (a shorter video
  /// repeats frames), else those of sample(). Throws as qwen2_vl::check_frame_limits().
  std::vector<int64_t> select_frames(const image::VideoInfo& video, double sampling_fps) const;

  /// Returns frame indices of a video of `frames` frames at `video_fps`, sampled at `sampling_fps`:
  /// evenly from the first to the last.
  std::vector<int64_t> sample(int64_t frames, double video_fps, double sampling_fps) const;

  /// Returns the size that `frames` frames of `size` are resized to. `max_pixels`: a further limit
  /// per frame.
  image::ImageSize frame_size(int64_t frames, image::ImageSize size, std::optional<int64_t> max_pixels,
                              const VisionConfig& vision) const;
};

/// Writes a limit of a frame's pixels into the settings of a Qwen3VLVideoProcessor, which has one
/// of a frame's tokens. Returns false and writes nothing if the limit cannot be expressed: not
/// whole tokens, or less than 1.05 times the minimum pixels of a video. `settings`: as in the file,
/// with the limit.
bool write_frame_limit(nlohmann::ordered_json& file, const VideoSettings& settings, const VisionConfig& vision);

/// Returns the text before the patches of each pair of frames: `<1.5 seconds>`, the mean time of
/// its two frames. `frame_indices`: of VideoSettings::sample(); the last one is repeated to fill
/// the last pair.
std::vector<std::string> make_timestamps(const std::vector<int64_t>& frame_indices, double video_fps,
                                         int64_t frames_per_patch);

/// Returns the text of a video with these time stamps: for each pair of frames its stamp, then
/// `tokens_per_timestamp` tokens between <|vision_start|> and <|vision_end|>.
std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_timestamp);

/// Processor of Qwen3-VL (transformers' Qwen3VLProcessor).
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
