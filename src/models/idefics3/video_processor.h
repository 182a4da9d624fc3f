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

/// What a checkpoint of SmolVLM2 says about videos (PreprocessorConfig::find_for_videos), and the run.
struct VideoSettings {
  ImageProcessorSettings frame;     ///< a frame is a picture that is not split
  double fps = 1;                   ///< frames looked at, a second: the checkpoint's, or data.video_fps if that is less
  int64_t max_frames = 64;          ///< the checkpoint's, or data.video_max_frames if that is less
  int64_t max_listed_frames = 128;  ///< of a list of frames: data.video_max_frames, as far as there are words for it
  double fallback_fps = 2;          ///< data.video_fps: of a video that does not say its own

  /// Nothing where the checkpoint does not say how to sample videos, as those of Idefics3 and the first SmolVLM: it
  /// takes none. `tile_size`: the tower's.
  static std::optional<VideoSettings> find(const std::filesystem::path& folder, int64_t tile_size,
                                           const ProcessorSettings& settings);

  double get_fps(const image::VideoInfo& video) const { return video.fps > 0 ? video.fps : fallback_fps; }

  /// Which frames are looked at, ascending, at least one: as SmolVLMVideoProcessor.sample_frames of transformers 5.23.
  /// Of a long video they keep away from its first and its last second. Of a list of frames all, up to
  /// max_listed_frames.
  std::vector<int64_t> sample(const image::VideoInfo& video) const;
};

/// A number from 1 to 999 in English words, as SmolVLM's processor (num2words) writes it: "one hundred and twenty-one".
std::string spell_number(int64_t number);

/// What stands for a video of SmolVLM2 in the model's text: how many frames of how long a video, then for each frame
/// its time and a picture that is not split (image_text.h). `seconds`: of each frame, from the video's beginning.
std::string format_video_text(std::span<const double> seconds, double duration, int64_t image_tokens_per_tile);

struct VideoText {
  std::string text;
  int64_t frames;
};

/// That of the frames that `settings` take of a video.
VideoText make_video_text(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile);

}  // namespace vlmtrain::models::idefics3
