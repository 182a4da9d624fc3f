#include "app/plan_samples/sample_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/arguments/flag_values.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::app {

namespace {

struct PixelSize {
  int64_t width = 0, height = 0;
};

/// Parses WIDTHxHEIGHT, in pixels; returns nothing for empty text.
std::optional<PixelSize> parse_pixel_size(const char* flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  PixelSize size;
  char trailing = 0;
  if (std::sscanf(text.c_str(), "%5ld%c", &size.width, &trailing) == 1 && size.width >= 1) {
    return PixelSize{.width = size.width, .height = size.width};
  }
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &size.width, &size.height, &trailing) != 2 || size.width < 1 ||
      size.height < 1) {
    throw usage_error(
        "{} {}: must be WIDTHxHEIGHT in pixels, such as 1024x768, or one number for both; no side is longer than 99999",
        flag, text);
  }
  return size;
}

void check_flags(const SampleFlags& arguments) {
  if (!arguments.image_mix.empty() && arguments.images) {
    throw usage_error("--image-mix {} and --images {}: give one of them", arguments.image_mix, *arguments.images);
  }
  if (!arguments.volume_size.empty() && arguments.volumes == 0) {
    throw usage_error("--volume-size {}: requires volumes; give --volumes 1 or more", arguments.volume_size);
  }
  if (arguments.video_frames) return;
  const char* const flag_name = arguments.fps ? "--fps" : !arguments.video_size.empty() ? "--video-size" : nullptr;
  if (flag_name)
    throw usage_error("{}: requires a video; give --video-frames too, such as --video-frames 32", flag_name);
}

/// Returns what all variants share.
models::SyntheticSample make_common_sample(const SampleFlags& arguments, const train::Config& config) {
  models::SyntheticSample sample;
  sample.video_frames = arguments.video_frames.value_or(0);
  sample.images = arguments.images;
  if (!sample.images && (sample.video_frames > 0 || arguments.volumes)) sample.images = 0;
  sample.volumes = arguments.volumes;
  sample.volume_size =
      arguments.volume_size.empty() ? config.data.volume.size : parse_volume_size(arguments.volume_size);
  sample.volume_dtype = config.data.volume.dtype;
  sample.text_tokens = arguments.text_tokens.value_or(sample.text_tokens);
  sample.label_tokens = arguments.answer_tokens.value_or(std::min(sample.label_tokens, sample.text_tokens - 1));
  sample.image_max_pixels = config.data.image_max_pixels;
  sample.sampling_fps = config.data.video_fps;
  sample.video_max_frames = config.data.video_max_frames;
  sample.video_layout = config.data.video_layout;
  sample.masks = arguments.masks;
  sample.mask_image_size = config.data.mask_image_size;
  const auto image_size = parse_pixel_size("--image-size", arguments.image_size);
  const auto video_size = parse_pixel_size("--video-size", arguments.video_size);
  if (image_size) {
    sample.image_width = sample.video_width = image_size->width;
    sample.image_height = sample.video_height = image_size->height;
  }
  if (video_size) {
    sample.video_width = video_size->width;
    sample.video_height = video_size->height;
  }
  if (arguments.fps) {
    sample.video_fps = *arguments.fps;
    if (!(sample.video_fps > 0)) throw usage_error("--fps {}: must be greater than 0", *arguments.fps);
  }
  return sample;
}

std::string describe_variant(const SampleVariant& variant) {
  return fmt::format("a sample of {} ({})", pluralize(variant.shape.tokens, "token"),
                     data::describe_media(variant.shape));
}

/// Returns the shape of a sample that training shrinks because it is too long (data.on_too_long):
/// the highest pixel limit with which it fits, in the steps and with the minimum of
/// models/processing. Returns nothing where no limit makes it fit.
std::optional<data::SampleShape> shrink_shape(const train::Config& config, models::SyntheticSample sample,
                                              const data::SampleShape& full_shape, int64_t max_tokens) {
  if (config.data.on_too_long != data::LongSamplePolicy::kShrink || full_shape.image_tokens == 0) return std::nullopt;
  constexpr int64_t kMinImageTokens = 64;
  const bool has_grids = !full_shape.grids.empty();
  const int64_t pixels_per_token =
      has_grids ? full_shape.pixel_rows / full_shape.image_tokens * full_shape.row.width * full_shape.row.width : 0;
  const int64_t unit = has_grids ? pixels_per_token : full_shape.row.height * full_shape.row.width;
  const auto try_shape = [&](int64_t units) -> std::optional<data::SampleShape> {
    const int64_t pixels = units * unit;
    if (config.data.image_max_pixels && pixels > *config.data.image_max_pixels) return std::nullopt;
    sample.image_max_pixels = pixels;
    auto shape = models::compute_sample_shape(config.model.path, sample);
    return shape.tokens <= max_tokens ? std::optional{std::move(shape)} : std::nullopt;
  };
  int64_t lower = has_grids ? kMinImageTokens : 1, upper = full_shape.image_tokens + 1;
  try {
    auto shape = try_shape(lower);
    while (shape && upper - lower > 1) {
      const int64_t middle = lower + (upper - lower) / 2;
      auto larger = try_shape(middle);
      (larger ? lower : upper) = middle;
      if (larger) shape = std::move(larger);
    }
    return shape;
  } catch (const UserError& error) {
    if (error.code() == ExitCode::kUsage) return std::nullopt;  // all images of the family have one size
    throw;
  }
}

/// Sets the rejection that the processor would report.
void check_acceptance(SampleVariant& variant, const train::Config& config, const models::ContextLength& context) {
  const auto& data = config.data;
  if (data.max_images_per_sample && variant.num_media > *data.max_images_per_sample) {
    variant.rejection = fmt::format("a sample of {} images has more than data.max_images_per_sample={}",
                                    variant.num_media, *data.max_images_per_sample);
  } else if (context.is_hard_limit && variant.shape.tokens > context.tokens) {
    variant.rejection = fmt::format("{} is longer than the model's {} positions ({})", describe_variant(variant),
                                    with_commas(context.tokens), context.key);
  } else if (variant.shape.tokens > data.max_length) {
    variant.rejection = fmt::format("{} is longer than data.max_length={}", describe_variant(variant), data.max_length);
    variant.required_max_length = variant.shape.tokens;
  }
}

}  // namespace

std::vector<SampleVariant> make_sample_variants(const SampleFlags& arguments, const train::Config& config) {
  check_flags(arguments);
  models::SyntheticSample sample = make_common_sample(arguments, config);
  // Without a mix all samples are equal, with the family's default number of images where no flag
  // gives one.
  const auto mix =
      arguments.image_mix.empty() ? std::vector{ImageMixComponent{.share = 1.0}} : parse_image_mix(arguments.image_mix);
  const auto context = models::read_context_length(config.model.path);
  std::vector<SampleVariant> variants;
  variants.reserve(mix.size());
  for (const ImageMixComponent& component : mix) {
    if (!arguments.image_mix.empty()) sample.images = component.images;
    SampleVariant variant{
        .share = component.share, .shape = models::compute_sample_shape(config.model.path, sample), .rejection = {}};
    variant.num_media = variant.shape.num_media - variant.shape.num_videos - variant.shape.num_volumes;
    const int64_t max_tokens =
        context.is_hard_limit ? std::min(config.data.max_length, context.tokens) : config.data.max_length;
    if (variant.shape.tokens > max_tokens) {
      if (auto shape = shrink_shape(config, sample, variant.shape, max_tokens)) {
        variant.original_tokens = variant.shape.tokens;
        variant.shape = std::move(*shape);
      }
    }
    check_acceptance(variant, config, context);
    variants.push_back(std::move(variant));
  }
  return variants;
}

}  // namespace vlmtrain::app
