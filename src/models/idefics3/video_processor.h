#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/idefics3/image_processor.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::idefics3 {

/// Video settings of a SmolVLM2 checkpoint (PreprocessorConfig::find_for_videos()), limited by
/// those of the run.
struct VideoSettings {
  ImageProcessorSettings frame_settings;  ///< of each frame, which is not split
  double fps = 1;                         ///< sampled frames per second: the checkpoint's, at most data.video_fps
  int64_t max_frames = 64;                ///< maximum per video file: the checkpoint's, at most data.video_max_frames
  int64_t max_listed_frames = 128;        ///< maximum per list of frames: data.video_max_frames, at most 999
  double fallback_fps = 2;                ///< data.video_fps; assumed rate of videos of unknown frame rate

  /// Reads the settings of the checkpoint in `folder`; returns nothing if it has no video sampling,
  /// as Idefics3 and the first SmolVLM. `tile_size` is image_size of the tower, in pixels. Throws
  /// UserError (kBadData) for unsupported settings and other tile sizes.
  static std::optional<VideoSettings> find(const std::filesystem::path& folder, int64_t tile_size,
                                           const ProcessorSettings& settings);

  double get_fps(const image::VideoInfo& video) const { return video.fps > 0 ? video.fps : fallback_fps; }

  /// Returns the ascending indices of the frames to use, at least one, as
  /// SmolVLMVideoProcessor.sample_frames of transformers 5.23, which skips the first and last
  /// second of a long video. Of a list of frames, returns all or max_listed_frames evenly spaced
  /// ones.
  std::vector<int64_t> sample_frame_indices(const image::VideoInfo& video) const;
};

/// Returns a number in English words, such as "one hundred and twenty-one", as num2words, which
/// SmolVLM's processor calls. REQUIRES: `number` is from 1 to 999.
std::string spell_number(int64_t number);

/// Returns the text of a SmolVLM2 video: number of frames and duration, then each frame's time and
/// image text. `seconds` are the times of the frames, `duration_seconds` is the length of the
/// video.
std::string format_video_text(std::span<const double> seconds, double duration_seconds, int64_t image_tokens_per_tile);

/// Text of a video.
struct VideoText {
  std::string text;
  int64_t frames;  ///< number of frames with image tokens in the text
};

/// Returns the text of a video with the frames of VideoSettings::sample_frame_indices().
VideoText make_video_text(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile);

}  // namespace vlmtrain::models::idefics3
