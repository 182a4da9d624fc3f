#include "app/sample_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/image_mix.h"
#include "app/volume_size.h"
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
  if (std::sscanf(text.c_str(), "%5ld%c", &sides.width, &rest) == 1 && sides.width >= 1) {
    return Sides{.width = sides.width, .height = sides.width};
  }
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &sides.width, &sides.height, &rest) != 2 || sides.width < 1 ||
      sides.height < 1) {
    throw usage_error(
        "{} {}: must be WIDTHxHEIGHT in pixels, such as 1024x768, or one number for both; no side is longer than 99999",
        flag, text);
  }
  return sides;
}

void check(const SampleArguments& arguments) {
  if (!arguments.mix.empty() && arguments.images) {
    throw usage_error("--mix {} and --images {}: give one of them", arguments.mix, *arguments.images);
  }
  if (!arguments.volume_size.empty() && arguments.volumes == 0) {
    throw usage_error("--volume-size {}: of which volumes? give --volumes 1 or more", arguments.volume_size);
  }
  if (arguments.video_frames) return;
  const char* const without = arguments.fps ? "--fps" : !arguments.video_size.empty() ? "--video-size" : nullptr;
  if (without) throw usage_error("{}: of which video? give --video-frames too, such as --video-frames 32", without);
}

/// What all kinds have alike.
models::HypotheticalSample common(const SampleArguments& arguments, const train::Config& config) {
  models::HypotheticalSample sample;
  sample.video_frames = arguments.video_frames.value_or(0);
  sample.images = arguments.images;
  if (!sample.images && (sample.video_frames > 0 || arguments.volumes)) sample.images = 0;
  sample.volumes = arguments.volumes;
  sample.volume_size =
      arguments.volume_size.empty() ? config.data.volume.size : read_volume_size(arguments.volume_size);
  sample.volume_dtype = config.data.volume.dtype;
  sample.text_tokens = arguments.text_tokens.value_or(sample.text_tokens);
  sample.label_tokens = arguments.answer_tokens.value_or(std::min(sample.label_tokens, sample.text_tokens - 1));
  sample.image_max_pixels = config.data.image_max_pixels;
  sample.wanted_fps = config.data.video_fps;
  sample.video_max_frames = config.data.video_max_frames;
  sample.video_layout = config.data.video_layout;
  sample.masks = arguments.masks;
  sample.mask_image_size = config.data.mask_image_size;
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

/// What training makes of a sample that is too long (data.on_too_long): the highest limit of its pixels with which it
/// fits, in the steps and down to the floor of models/processing. Nothing: it does not fit so.
std::optional<data::SampleShape> shrunk(const train::Config& config, models::HypotheticalSample sample,
                                        const data::SampleShape& whole, int64_t most_tokens) {
  if (config.data.on_too_long != data::LongSamplePolicy::kShrink || whole.image_tokens == 0) return std::nullopt;
  constexpr int64_t kLeastSquares = 64;
  const bool has_grids = !whole.grids.empty();
  const int64_t of_token = has_grids ? whole.pixel_rows / whole.image_tokens * whole.row.width * whole.row.width : 0;
  const int64_t unit = has_grids ? of_token : whole.row.height * whole.row.width;
  const auto with = [&](int64_t units) -> std::optional<data::SampleShape> {
    const int64_t pixels = units * unit;
    if (config.data.image_max_pixels && pixels > *config.data.image_max_pixels) return std::nullopt;
    sample.image_max_pixels = pixels;
    auto shape = models::shape_of(config.model.path, sample);
    return shape.tokens <= most_tokens ? std::optional{std::move(shape)} : std::nullopt;
  };
  int64_t fitting = has_grids ? kLeastSquares : 1, above = whole.image_tokens + 1;
  try {
    auto shape = with(fitting);
    while (shape && above - fitting > 1) {
      const int64_t middle = fitting + (above - fitting) / 2;
      auto larger = with(middle);
      (larger ? fitting : above) = middle;
      if (larger) shape = std::move(larger);
    }
    return shape;
  } catch (const UserError& error) {
    if (error.code() == ExitCode::kUsage) return std::nullopt;  // a family whose pictures are all alike
    throw;
  }
}

/// As the processor would refuse it.
void judge(SampleKind& kind, const train::Config& config, const models::ContextLength& context) {
  const auto& data = config.data;
  if (data.max_images_per_sample && kind.images > *data.max_images_per_sample) {
    kind.refused = fmt::format("a sample of {} images has more than data.max_images_per_sample={}", kind.images,
                               *data.max_images_per_sample);
  } else if (context.refuses_longer && kind.shape.tokens > context.tokens) {
    kind.refused = fmt::format("{} is longer than the model's {} positions ({})", words_of(kind),
                               grouped(context.tokens), context.key);
  } else if (kind.shape.tokens > data.max_length) {
    kind.refused = fmt::format("{} is longer than data.max_length={}", words_of(kind), data.max_length);
    kind.needed_max_length = kind.shape.tokens;
  }
}

}  // namespace

std::vector<SampleKind> sample_kinds(const SampleArguments& arguments, const train::Config& config) {
  check(arguments);
  models::HypotheticalSample sample = common(arguments, config);
  // Without a mix all are alike, and have as many images as the family gives them where no flag says how many.
  const auto mix = arguments.mix.empty() ? std::vector{MixPart{.share = 1.0}} : read_mix(arguments.mix);
  const auto context = models::context_length_of(config.model.path);
  std::vector<SampleKind> kinds;
  kinds.reserve(mix.size());
  for (const MixPart& part : mix) {
    if (!arguments.mix.empty()) sample.images = part.images;
    SampleKind kind{.share = part.share, .shape = models::shape_of(config.model.path, sample), .refused = {}};
    kind.images = kind.shape.images - kind.shape.videos - kind.shape.volumes;
    const int64_t most =
        context.refuses_longer ? std::min(config.data.max_length, context.tokens) : config.data.max_length;
    if (kind.shape.tokens > most) {
      if (auto shape = shrunk(config, sample, kind.shape, most)) {
        kind.shrunk_from = kind.shape.tokens;
        kind.shape = std::move(*shape);
      }
    }
    judge(kind, config, context);
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

}  // namespace vlmtrain::app
