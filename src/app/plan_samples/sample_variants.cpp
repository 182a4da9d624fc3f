#include "app/plan_samples/sample_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::app {

namespace {

struct PixelSize {
  int64_t width = 0, height = 0;
};

/// Parses WIDTHxHEIGHT in pixels, or one number for both, each from 1 to 99999. Returns nothing for
/// empty text. Throws UserError (kUsage) for invalid text.
std::optional<PixelSize> parse_pixel_size(const char* flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  PixelSize size;
  char trailing_char = 0;
  if (std::sscanf(text.c_str(), "%5ld%c", &size.width, &trailing_char) == 1 && size.width >= 1) {
    return PixelSize{.width = size.width, .height = size.width};
  }
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &size.width, &size.height, &trailing_char) != 2 || size.width < 1 ||
      size.height < 1) {
    throw usage_error(
        "{} {}: must be WIDTHxHEIGHT in pixels, such as 1024x768, or one number for both, each from 1 to 99999", flag,
        text);
  }
  return size;
}

/// Throws UserError (kUsage) for flags that contradict or require each other.
void check_sample_flags(const SampleFlags& flags) {
  if (!flags.image_mix.empty() && flags.num_images) {
    throw usage_error("--image-mix {} and --images {}: give one of them", flags.image_mix, *flags.num_images);
  }
  if (!flags.volume_size.empty() && flags.num_volumes == 0) {
    throw usage_error("--volume-size {}: requires volumes; give --volumes 1 or more", flags.volume_size);
  }
  if (flags.video_frames) return;
  const char* const flag_name = flags.fps ? "--fps" : !flags.video_size.empty() ? "--video-size" : nullptr;
  if (flag_name)
    throw usage_error("{}: requires a video; give --video-frames too, such as --video-frames 32", flag_name);
}

/// Returns the sample without the number of images of a variant of --image-mix.
models::SyntheticSample make_common_sample(const SampleFlags& flags, const train::Config& config) {
  models::SyntheticSample sample;
  sample.video_frames = flags.video_frames.value_or(0);
  sample.images = flags.num_images;
  // A video or volumes replace the image that a family has by default.
  if (!sample.images && (sample.video_frames > 0 || flags.num_volumes)) sample.images = 0;
  sample.volumes = flags.num_volumes;
  sample.volume_size = flags.volume_size.empty() ? config.data.volume.size : parse_volume_size(flags.volume_size);
  sample.volume_dtype = config.data.volume.dtype;
  sample.text_tokens = flags.num_text_tokens.value_or(sample.text_tokens);
  sample.label_tokens = flags.num_answer_tokens.value_or(std::min(sample.label_tokens, sample.text_tokens - 1));
  sample.image_max_pixels = config.data.image_max_pixels;
  sample.sampling_fps = config.data.video_fps;
  sample.video_max_frames = config.data.video_max_frames;
  sample.video_layout = config.data.video_layout;
  sample.masks = flags.num_masks;
  sample.mask_image_size = config.data.mask_image_size;
  const auto image_size = parse_pixel_size("--image-size", flags.image_size);
  const auto video_size = parse_pixel_size("--video-size", flags.video_size);
  if (image_size) {  // also the default size of a video frame
    sample.image_width = sample.video_width = image_size->width;
    sample.image_height = sample.video_height = image_size->height;
  }
  if (video_size) {
    sample.video_width = video_size->width;
    sample.video_height = video_size->height;
  }
  if (flags.fps) {
    sample.video_fps = *flags.fps;
    if (!(sample.video_fps > 0)) throw usage_error("--fps {}: must be greater than 0", *flags.fps);
  }
  return sample;
}

/// Returns a phrase such as "a sample of 9,000 tokens (2 images)".
std::string describe_variant(const SampleVariant& variant) {
  return fmt::format("a sample of {} ({})", pluralize(variant.shape.tokens, "token"),
                     data::describe_media(variant.shape));
}

/// Returns the shape of a sample of more than `max_tokens` tokens after training has shrunk its
/// images (data.on_too_long=shrink), with the largest limit on pixels per image with which the
/// sample fits. Uses the steps and the minimum of the processors (get_shrink_range() in
/// src/models). Returns nothing if no limit makes the sample fit. `full_shape` is the shape without
/// a limit.
std::optional<data::SampleShape> compute_shrunk_shape(const train::Config& config, models::SyntheticSample sample,
                                                      const data::SampleShape& full_shape, int64_t max_tokens) {
  if (config.data.on_too_long != data::LongSamplePolicy::kShrink || full_shape.image_tokens == 0) return std::nullopt;
  constexpr int64_t kMinImageTokens = 64;  // as kMinImageTokens in models/qwen2_vl/processor.cpp
  const bool has_grids = !full_shape.patch_grids.empty();
  // In native resolution (with grids), a token covers pixel_rows / image_tokens patches of
  // row.width × row.width pixels. Otherwise images shrink by whole tiles of row.height × row.width
  // pixels.
  const int64_t pixels_per_token =
      has_grids ? full_shape.pixel_rows / full_shape.image_tokens * full_shape.row.width * full_shape.row.width : 0;
  const int64_t pixels_per_token_or_tile = has_grids ? pixels_per_token : full_shape.row.height * full_shape.row.width;
  const auto compute_fitting_shape = [&](int64_t num_tokens_or_tiles) -> std::optional<data::SampleShape> {
    const int64_t pixels = num_tokens_or_tiles * pixels_per_token_or_tile;
    if (config.data.image_max_pixels && pixels > *config.data.image_max_pixels) return std::nullopt;
    sample.image_max_pixels = pixels;
    auto shape = models::compute_sample_shape(config.model.folder(), sample);
    return shape.tokens <= max_tokens ? std::optional{std::move(shape)} : std::nullopt;
  };
  // Binary search. Invariant: `lower` tokens or tiles fit (after the first try), `upper` do not.
  int64_t lower = has_grids ? kMinImageTokens : 1, upper = full_shape.image_tokens + 1;
  try {
    auto shape = compute_fitting_shape(lower);
    while (shape && upper - lower > 1) {
      const int64_t middle = lower + (upper - lower) / 2;
      auto larger_shape = compute_fitting_shape(middle);
      (larger_shape ? lower : upper) = middle;
      if (larger_shape) shape = std::move(larger_shape);
    }
    return shape;
  } catch (const UserError& error) {
    // The family rejects data.image_max_pixels, because all its images have one size.
    if (error.code() == ExitCode::kUsage) return std::nullopt;
    throw;
  }
}

/// Sets variant.rejection_reason and variant.required_max_length if the processor would reject the
/// sample.
void set_rejection_reason(SampleVariant& variant, const train::Config& config,
                          const models::ContextLength& context_length) {
  const auto& data = config.data;
  if (data.max_images_per_sample && variant.num_images > *data.max_images_per_sample) {
    variant.rejection_reason = fmt::format("a sample has {}, more than {}={}", pluralize(variant.num_images, "image"),
                                           keys::data::kMaxImagesPerSample, *data.max_images_per_sample);
  } else if (context_length.is_hard_limit && variant.shape.tokens > context_length.tokens) {
    variant.rejection_reason = fmt::format("{} is longer than the model's {} positions ({})", describe_variant(variant),
                                           format_with_commas(context_length.tokens), context_length.key);
  } else if (variant.shape.tokens > data.max_length) {
    variant.rejection_reason =
        fmt::format("{} is longer than {}={}", describe_variant(variant), keys::data::kMaxLength, data.max_length);
    variant.required_max_length = variant.shape.tokens;
  }
}

}  // namespace

std::vector<SampleVariant> make_sample_variants(const SampleFlags& flags, const train::Config& config) {
  check_sample_flags(flags);
  models::SyntheticSample sample = make_common_sample(flags, config);
  // Without --image-mix, all samples are equal. Without --images, they have the default number of
  // images of the model's family.
  const auto components =
      flags.image_mix.empty() ? std::vector{ImageMixComponent{.share = 1.0}} : parse_image_mix(flags.image_mix);
  const auto context_length = models::read_context_length(config.model.folder());
  std::vector<SampleVariant> variants;
  variants.reserve(components.size());
  for (const ImageMixComponent& component : components) {
    if (!flags.image_mix.empty()) sample.images = component.num_images;
    SampleVariant variant{.share = component.share,
                          .shape = models::compute_sample_shape(config.model.folder(), sample),
                          .rejection_reason = {}};
    variant.num_images = variant.shape.num_images;
    const int64_t max_tokens =
        context_length.is_hard_limit ? std::min(config.data.max_length, context_length.tokens) : config.data.max_length;
    if (variant.shape.tokens > max_tokens) {
      if (auto shape = compute_shrunk_shape(config, sample, variant.shape, max_tokens)) {
        variant.num_original_tokens = variant.shape.tokens;
        variant.shape = std::move(*shape);
      }
    }
    set_rejection_reason(variant, config, context_length);
    variants.push_back(std::move(variant));
  }
  return variants;
}

}  // namespace vlmtrain::app
