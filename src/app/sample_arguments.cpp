#include "app/sample_arguments.h"

#include "app/validators.h"

namespace vlmtrain::app {

void declare_sample_flags(CLI::App& command, SampleFlags& arguments) {
  const auto add = [&](const char* flag, auto& value, const char* description) {
    return command.add_option(flag, value, description)->take_last();
  };
  add("--images", arguments.images, "images of a sample [1; beside a video 0]");
  add("--image-size", arguments.image_size, "their size in pixels, WIDTHxHEIGHT or one number for both [1024x768]");
  add("--masks", arguments.masks, "masks that a sample's answers stand for [one an image, where the model draws them]");
  add("--mix", arguments.mix, "or shares of samples by their images, such as 1:0.5,2:0.25,3:0.25")->check(not_empty());
  add("--video-frames", arguments.video_frames, "frames of a sample's video; all of them are looked at");
  add("--fps", arguments.fps, "or, with this rate, data.video_fps of them a second");
  add("--video-size", arguments.video_size, "a frame's size in pixels [--image-size]");
  add("--volumes", arguments.volumes, "volumes of a sample, of a model that takes them [1]");
  add("--volume-size", arguments.volume_size,
      "their size in voxels, XxYxZ or one number for all three [what the model was made for]");
  add("--text-tokens", arguments.text_tokens, "tokens of question and answer of a sample [256]");
  add("--answer-tokens", arguments.answer_tokens, "tokens of these that are learnt [64]");
}

}  // namespace vlmtrain::app
