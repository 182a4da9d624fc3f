#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/qwen2_vl/image_processor.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::models::qwen2_vl {

/// Factor of the minimum pixels of a frame below which a cap per frame does not go. As fetch_video
/// of qwen-vl-utils and transformers' Qwen3VLVideoProcessor, which do not explain it.
inline constexpr double kMinPixelMargin = 1.05;

/// Returns the video settings of the checkpoint in `folder`: section video_processor of
/// processor_config.json, else video_preprocessor_config.json, else preprocessor_config.json, in
/// transformers' order. Throws UserError (kBadData) if all are missing or if video_processor_type
/// is not `type`, apart from a suffix "Fast".
PreprocessorConfig load_video_config(const std::filesystem::path& folder, std::string_view type);

/// Returns the supported keys of a video processor's settings, and keys that have no effect.
std::set<std::string_view> get_video_config_keys();

/// Limits of the frames and tokens of a video.
struct FrameLimits {
  int64_t min_frames = 4;                ///< per video file, unless it has fewer
  int64_t max_frames = 768;              ///< per video file
  bool limits_pixels_per_frame = false;  ///< whether max_video_tokens applies
  int64_t max_video_tokens = 0;          ///< set by each family, which defines it
  std::optional<int64_t> num_frames{};   ///< per video, instead of a frame rate; nothing: data.video_fps decides
  int64_t max_listed_frames = 128;       ///< maximum per list of frames: data.video_max_frames
  bool has_fps_conflict = false;         ///< num_frames and fps are both set; transformers rejects all videos then
  std::string config_name{};             ///< PreprocessorConfig::name() of the file
};

/// Throws UserError (kBadData) if limits.has_fps_conflict.
void reject_fps_conflict(const FrameLimits& limits);

/// Writes the sampling of a run into the settings of a video processor: at most `max_frames` frames
/// per video and, unless the file has num_frames, `fps` frames per second. `limits` are those of
/// the file.
void write_frame_sampling(nlohmann::ordered_json& settings, const FrameLimits& limits, double fps, int64_t max_frames);

/// Reads the limits of a file; missing keys have the values of `limits`. `has_fps` is true if
/// transformers' class has a default fps, which a file with num_frames must set to null. Throws
/// UserError (kBadData) with the key for invalid values.
FrameLimits read_frame_limits(const PreprocessorConfig& file, FrameLimits limits, const VisionConfig& vision,
                              bool has_fps);

/// Video settings of a checkpoint (Qwen2VLVideoProcessor of transformers 5.23).
struct VideoSettings {
  PixelSettings pixels;                            ///< per frame
  FrameLimits limits{.max_video_tokens = 128000};  ///< max_video_tokens are per video; all its frames share them

  /// Reads the settings of the checkpoint in `folder`. `max_pixels` (data.image_max_pixels) limits
  /// each frame. Throws UserError (kBadData) with the key for unsupported settings.
  static VideoSettings read(const std::filesystem::path& folder, const VisionConfig& vision,
                            std::optional<int64_t> max_pixels);

  /// Returns the settings of each frame if `frames` frames of a video are used.
  PixelSettings compute_frame_settings(int64_t frames, const VisionConfig& vision) const;

  /// Returns the ascending indices of the frames to use, at least one. For a list of frames: all, or
  /// up to max_listed_frames evenly spaced ones. For a video file: num_frames if the settings have
  /// it, else those of sample_frame_indices() with `sampling_fps` (data.video_fps). A file of
  /// unknown frame rate is assumed to have `sampling_fps`. Throws as reject_fps_conflict().
  std::vector<int64_t> select_frames(const image::VideoInfo& video, double sampling_fps,
                                     const VisionConfig& vision) const;

  /// Returns the indices of evenly spaced frames of a video that has `frames` frames and
  /// `video_fps` frames per second, sampled at `sampling_fps` frames per second. Their number is
  /// rounded down to whole temporal patches. Returns all frames of a video shorter than one
  /// temporal patch.
  std::vector<int64_t> sample_frame_indices(int64_t frames, double video_fps, double sampling_fps,
                                            const VisionConfig& vision) const;
};

}  // namespace vlmtrain::models::qwen2_vl
