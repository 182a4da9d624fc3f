#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/gemma4/image_processor.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::gemma4 {

/// Video settings of a checkpoint (Gemma4VideoProcessor and Gemma4UnifiedVideoProcessor of
/// transformers 5.24) and of the run.
struct VideoSettings {
  PixelSettings pixels{.max_tokens = 70};  ///< of each frame
  std::optional<int64_t> num_frames = 32;  ///< per video file; nothing: sampling_fps decides
  double sampling_fps = 2;                 ///< data.video_fps
  int64_t max_frames = 128;                ///< data.video_max_frames
  bool has_fps_conflict = false;           ///< num_frames and fps are both set; transformers rejects all videos then
  std::string config_name{};               ///< PreprocessorConfig::name() of the file

  /// Reads the settings of the checkpoint in `folder` (PreprocessorConfig::find_for_videos()). A
  /// checkpoint without video settings has transformers' defaults. Throws UserError (kBadData) with
  /// the key for unsupported settings and other processor types, and as check_max_pixels().
  static VideoSettings read(const std::filesystem::path& folder, const PatchShape& shape,
                            const ProcessorSettings& settings);

  /// Returns the ascending indices of the frames to use, at least one. For a list of frames: all, or
  /// max_frames evenly spaced ones. For a video file: num_frames if set, else sampling_fps per
  /// second; max_frames at most. transformers rejects a video of fewer frames than num_frames; here
  /// all of its frames are used. Throws as reject_fps_conflict() for a video file.
  std::vector<int64_t> select_frames(const image::VideoInfo& video) const;

  /// Returns the frame rate of a video. If it is unknown: sampling_fps for a list or a folder of
  /// frames, which were sampled before, else 24 as in transformers.
  double get_frame_rate(const image::VideoInfo& video) const;
};

/// Throws UserError (kBadData) if settings.has_fps_conflict.
void reject_fps_conflict(const VideoSettings& settings);

/// Returns the class of transformers that processes the videos of a model.
std::string_view get_video_processor_type(const PatchShape& shape);

/// Writes the number of frames, or their rate, into `file`, the settings of a video processor.
void write_frame_sampling(nlohmann::ordered_json& file, const VideoSettings& settings);

/// Returns the time of each frame as `mm:ss`.
std::vector<std::string> make_timestamps(const std::vector<int64_t>& frame_indices, double fps);

}  // namespace vlmtrain::models::gemma4
