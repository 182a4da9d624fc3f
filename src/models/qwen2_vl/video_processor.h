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

/// Returns the video settings of a checkpoint: section video_processor of processor_config.json,
/// else video_preprocessor_config.json, else the image's preprocessor_config.json, in transformers'
/// order. Throws UserError (kBadData) if all are missing or video_processor_type differs.
PreprocessorConfig find_video_settings(const std::filesystem::path& folder, std::string_view type);

/// Returns the supported keys of such a file, and those known to have no effect.
std::set<std::string_view> get_video_keys();

/// Limits of a video's frames and tokens.
struct FrameLimits {
  int64_t min_frames = 4;
  int64_t max_frames = 768;
  bool cap_pixels_per_frame = false;
  int64_t max_video_tokens = 0;
  std::optional<int64_t> num_frames{};  ///< per video, instead of a frame rate; nothing: data.video_fps
  int64_t max_listed_frames = 128;      ///< of a list of frames: data.video_max_frames
  bool has_fps_conflict = false;        ///< num_frames and fps are both set; transformers refuses each video then
};

/// Throws UserError (kBadData) for limits with both num_frames and fps.
void check_frame_limits(const FrameLimits& limits);

/// Writes a run's sampling into the settings of a video processor: at most `max_frames` frames per
/// video, `fps` frames per second unless the file has num_frames. `limits`: as in the file.
void write_sampling(nlohmann::ordered_json& settings, const FrameLimits& limits, double fps, int64_t max_frames);

/// Returns the limits of a file; missing keys have the values of `limits`. `has_fps`: transformers'
/// class has a default fps, which a file with num_frames must set to null.
FrameLimits read_frame_limits(const PreprocessorConfig& file, FrameLimits limits, const VisionConfig& vision,
                              bool has_fps);

struct VideoSettings {
  PixelSettings pixels;                            ///< per frame
  FrameLimits limits{.max_video_tokens = 128000};  ///< with a cap, each frame has its share of these tokens

  /// Reads the settings of a checkpoint. `max_pixels` (data.image_max_pixels) limits each frame.
  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            std::optional<int64_t> max_pixels);

  /// Returns the settings of a frame of a video of which `frames` frames are used.
  PixelSettings compute_frame_settings(int64_t frames, const VisionConfig& vision) const;

  /// Returns the indices of the frames to use, at least one, at `sampling_fps` (data.video_fps):
  /// all of a list of at most max_listed_frames, num_frames if the file has it, else those of
  /// sample(). Throws as check_frame_limits().
  std::vector<int64_t> select_frames(const image::VideoInfo& video, double sampling_fps,
                                     const VisionConfig& vision) const;

  /// Returns frame indices of a video of `frames` frames at `video_fps`, sampled at `sampling_fps`
  /// and rounded to whole temporal patches. A video shorter than one temporal patch is used as a
  /// whole.
  std::vector<int64_t> sample(int64_t frames, double video_fps, double sampling_fps, const VisionConfig& vision) const;
};

}  // namespace vlmtrain::models::qwen2_vl
