#include "app/sample_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/image_mix.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/models/hypothetical_sample.h"

namespace vlmtrain::app {

namespace {

struct Sides {
  int64_t width = 0, height = 0;
};

/// WIDTHxHEIGHT, in pixels; nothing where the flag was not given.
std::optional<Sides> read_sides(const char* flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  Sides sides;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &sides.width, &sides.height, &rest) != 2 || sides.width < 1 ||
      sides.height < 1) {
    throw usage_error("{} {}: must be WIDTHxHEIGHT in pixels, such as 1024x768", flag, text);
  }
  return sides;
}

void check(const SampleArguments& arguments) {
  if (!arguments.mix.empty() && arguments.images) {
    throw usage_error("--mix {} and --images {}: give one of them", arguments.mix, *arguments.images);
  }
  if (arguments.video_frames) return;
  const char* const without = arguments.fps ? "--fps" : !arguments.video_size.empty() ? "--video-size" : nullptr;
  if (without) throw usage_error("{}: of which video? give --video-frames too, such as --video-frames 32", without);
}

/// What all kinds have alike.
models::HypotheticalSample common(const SampleArguments& arguments, const train::Config& config) {
  models::HypotheticalSample sample;
  sample.video_frames = arguments.video_frames.value_or(0);
  sample.images = arguments.images.value_or(sample.video_frames > 0 ? 0 : sample.images);
  sample.text_tokens = arguments.text_tokens.value_or(sample.text_tokens);
  sample.label_tokens = arguments.answer_tokens.value_or(std::min(sample.label_tokens, sample.text_tokens - 1));
  sample.image_max_pixels = config.data.image_max_pixels;
  sample.wanted_fps = config.data.video_fps;
  sample.video_max_frames = config.data.video_max_frames;
  const auto of_image = read_sides("--image-size", arguments.image_size);
  const auto of_video = read_sides("--video-size", arguments.video_size);
  if (of_image) {
    sample.image_width = sample.video_width = of_image->width;
    sample.image_height = sample.video_height = of_image->height;
  }
  if (of_video) {
    sample.video_width = of_video->width;
    sample.video_height = of_video->height;
  }
  if (arguments.fps) {
    sample.video_fps = *arguments.fps;
    if (!(sample.video_fps > 0)) throw usage_error("--fps {}: must be greater than 0", *arguments.fps);
  }
  return sample;
}

std::string words_of(const SampleKind& kind) {
  return fmt::format("a sample of {} ({})", counted(kind.shape.tokens, "token"), data::media_words(kind.shape));
}

/// As the processor would refuse it.
void judge(SampleKind& kind, const train::Config& config, const models::ContextLength& context) {
  const auto& data = config.data;
  if (data.max_images_per_sample && kind.images > *data.max_images_per_sample) {
    kind.refused = fmt::format("a sample of {} images has more than data.max_images_per_sample={}", kind.images,
                               *data.max_images_per_sample);
  } else if (context.refuses_longer && kind.shape.tokens > context.tokens) {
    kind.refused = fmt::format("{} is longer than the model's {} positions (lm_max_position_embeddings)",
                               words_of(kind), grouped(context.tokens));
  } else if (kind.shape.tokens > data.max_length) {
    kind.refused = fmt::format("{} is longer than data.max_length={}", words_of(kind), data.max_length);
    kind.needed_max_length = kind.shape.tokens;
  }
}

}  // namespace

std::vector<SampleKind> sample_kinds(const SampleArguments& arguments, const train::Config& config) {
  check(arguments);
  models::HypotheticalSample sample = common(arguments, config);
  const auto mix = arguments.mix.empty() ? std::vector{MixPart{sample.images, 1.0}} : read_mix(arguments.mix);
  const auto context = models::context_length_of(config.model.path);
  std::vector<SampleKind> kinds;
  kinds.reserve(mix.size());
  for (const MixPart& part : mix) {
    sample.images = part.images;
    SampleKind kind{.images = part.images,
                    .share = part.share,
                    .shape = models::shape_of(config.model.path, sample),
                    .refused = {}};
    judge(kind, config, context);
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

}  // namespace vlmtrain::app
