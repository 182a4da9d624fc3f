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

/// The video settings of a SmolVLM2 checkpoint (PreprocessorConfig::find_for_videos()) and of the
/// run.
struct VideoSettings {
  ImageProcessorSettings frame;     ///< of frames, which are images without splitting
  double fps = 1;                   ///< sampled frames per second: the checkpoint's, at most data.video_fps
  int64_t max_frames = 64;          ///< the checkpoint's, at most data.video_max_frames
  int64_t max_listed_frames = 128;  ///< of a list of frames: data.video_max_frames, at most 999
  double fallback_fps = 2;          ///< data.video_fps, for videos of unknown frame rate

  /// Returns the settings; nothing if the checkpoint has no video sampling, like Idefics3 and the
  /// first SmolVLM. `tile_size` is the tower's.
  static std::optional<VideoSettings> find(const std::filesystem::path& folder, int64_t tile_size,
                                           const ProcessorSettings& settings);

  double get_fps(const image::VideoInfo& video) const { return video.fps > 0 ? video.fps : fallback_fps; }

  /// Returns the ascending indices of the sampled frames, at least one, as
  /// SmolVLMVideoProcessor.sample_frames of transformers 5.23. Skips the first and last second of a
  /// long video. For a list of frames, returns all up to max_listed_frames.
  std::vector<int64_t> sample(const image::VideoInfo& video) const;
};

/// Returns a number from 1 to 999 in English words, as SmolVLM's processor (num2words): "one
/// hundred and twenty-one".
std::string spell_number(int64_t number);

/// Returns the text of a SmolVLM2 video: number of frames and duration, then each frame's time and
/// image text. `seconds` are the frames' times from the start.
std::string format_video_text(std::span<const double> seconds, double duration, int64_t image_tokens_per_tile);

/// The text of a video, and its number of frames.
struct VideoText {
  std::string text;
  int64_t frames;
};

/// Returns the text of the frames that `settings` sample from a video.
VideoText make_video_text(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile);

}  // namespace vlmtrain::models::idefics3
