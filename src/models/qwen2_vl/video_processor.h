#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "models/qwen2_vl/image_processor.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::models::qwen2_vl {

/// What a checkpoint says about videos: section video_processor of processor_config.json, else
/// video_preprocessor_config.json, else the image's preprocessor_config.json, as transformers looks for it. Throws
/// UserError (kBadData) where there is none of them, or its video_processor_type is another.
PreprocessorConfig find_video_settings(const std::filesystem::path& folder, std::string_view type);

/// The keys of such a file that are read, and those known to change nothing.
std::set<std::string_view> get_video_keys();

/// Of the frames of a video that are looked at, and of its tokens.
struct FrameLimits {
  int64_t min_frames = 4;
  int64_t max_frames = 768;
  bool cap_pixels_per_frame = false;
  int64_t max_video_tokens = 0;
  std::optional<int64_t> num_frames{};  ///< of each video, instead of a number a second; nothing: data.video_fps
  int64_t max_listed_frames = 128;      ///< of a list of frames: data.video_max_frames
  bool has_fps_conflict = false;        ///< num_frames stands beside fps, which transformers refuses with each video
};

/// Throws UserError (kBadData) for a video where the limits have num_frames and fps.
void check_frame_limits(const FrameLimits& limits);

/// Writes the sampling of a run into the settings of a video processor: at most `max_frames` of a video, `fps` of a
/// second unless the file has num_frames. `limits`: as the file has them.
void write_sampling(nlohmann::ordered_json& settings, const FrameLimits& limits, double fps, int64_t max_frames);

/// `limits`, which are the defaults, as the file has them. `has_fps`: transformers' class has an fps of its own, which
/// a file with num_frames must set to null.
FrameLimits read_frame_limits(const PreprocessorConfig& file, FrameLimits limits, const VisionConfig& vision,
                              bool has_fps);

struct VideoSettings {
  PixelSettings pixels;                            ///< of a frame
  FrameLimits limits{.max_video_tokens = 128000};  ///< capped, a frame has no more than its share of these tokens

  /// `max_pixels` (data.image_max_pixels) limits each frame.
  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            std::optional<int64_t> max_pixels);

  /// Those for the frames of a video of which `frames` are taken.
  PixelSettings compute_frame_settings(int64_t frames, const VisionConfig& vision) const;

  /// Which frames are looked at, with data.video_fps `sampling_fps`, at least one: all of a list of no more than
  /// max_listed_frames, num_frames where the file has it, else as sample(). Throws UserError (kBadData) as
  /// check_frame_limits.
  std::vector<int64_t> select_frames(const image::VideoInfo& video, double sampling_fps,
                                     const VisionConfig& vision) const;

  /// Which of a video's `frames` frames are taken, with `video_fps` frames a second in the video and `fps` wanted: as
  /// many as fill temporal patches. A video of fewer frames than one temporal patch is taken as a whole.
  std::vector<int64_t> sample(int64_t frames, double video_fps, double sampling_fps, const VisionConfig& vision) const;
};

}  // namespace vlmtrain::models::qwen2_vl
