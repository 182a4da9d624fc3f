#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "models/idefics3/video_processor.h"

namespace vlmtrain::models::idefics3 {

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
