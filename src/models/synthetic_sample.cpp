#include "vlmtrain/models/synthetic_sample.h"

#include <algorithm>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

// Limits on the numbers of a sample. They are far above any plausible sample, and low enough that
// products of them fit into 64 bits.
constexpr int64_t kMaxMediaPerSample = 10'000;
constexpr double kMaxFps = 1e4;
constexpr int64_t kMaxMediaSide = 100'000;
constexpr int64_t kMaxTextTokens = 10'000'000;

/// The numbers of images and volumes in a sample.
struct MediaCounts {
  int64_t images = 0;
  int64_t volumes = 0;
};

/// Returns for example "1 mask". The number is a flag's value, so it may be negative.
std::string format_count(int64_t number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

/// Returns the numbers of media, with defaults for those that are not set. Throws UserError
/// (kUsage) for media that the family does not take.
MediaCounts count_media(const SyntheticSample& sample, const Family& family) {
  const bool supports_images = family.compute_image_sample_shape != nullptr;
  const bool supports_volumes = family.compute_volume_sample_shape != nullptr;
  MediaCounts counts{.images = sample.images.value_or(supports_images ? 1 : 0),
                     .volumes = sample.volumes.value_or(supports_volumes && !supports_images ? 1 : 0)};
  if (counts.images != 0 && !supports_images && !supports_volumes) {
    throw usage_error("--images: {} in a sample, but this model has no vision tower; omit the flag, or give 0",
                      format_count(counts.images, "image"));
  }
  if (counts.images > 0 && !supports_images) {
    throw usage_error("--images: {} in a sample, but {} supports only volumes; give --volumes {} instead",
                      format_count(counts.images, "image"), family.model_types.front(), counts.images);
  }
  if (counts.volumes != 0 && !supports_volumes) {
    throw usage_error(
        "--volumes: {} in a sample, but this model family supports no volumes; use a family that does ({}), or images",
        format_count(counts.volumes, "volume"), format_volume_model_types());
  }
  return counts;
}

void check_sample(const SyntheticSample& sample, const MediaCounts& counts) {
  if (counts.images < 0 || counts.images > kMaxMediaPerSample) {
    throw usage_error("--images: {} images in a sample; give 0 (text only) to {}", counts.images, kMaxMediaPerSample);
  }
  if (counts.volumes < 0 || counts.volumes > kMaxMediaPerSample) {
    throw usage_error("--volumes: {} volumes in a sample; give 0 (text only) to {}", counts.volumes,
                      kMaxMediaPerSample);
  }
  const auto is_valid_side = [](int64_t pixels) { return pixels >= 1 && pixels <= kMaxMediaSide; };
  if (counts.images > 0 && !(is_valid_side(sample.image_width) && is_valid_side(sample.image_height))) {
    throw usage_error("--image-size: {} x {} pixels; give a width and a height from 1 to {}", sample.image_width,
                      sample.image_height, kMaxMediaSide);
  }
  if (sample.video_frames < 0 || sample.video_frames > image::kMaxVideoFrames) {
    throw usage_error("--video-frames: {} frames; give 0 (no video) to {}", sample.video_frames,
                      image::kMaxVideoFrames);
  }
  if (sample.video_frames > 0 && !(is_valid_side(sample.video_width) && is_valid_side(sample.video_height))) {
    throw usage_error("--video-size: {} x {} pixels; give a width and a height from 1 to {}", sample.video_width,
                      sample.video_height, kMaxMediaSide);
  }
  if (!(sample.video_fps >= 0 && sample.video_fps <= kMaxFps)) {
    throw usage_error("--fps: {} frames per second; give more than 0 and at most {}", sample.video_fps, kMaxFps);
  }
  if (sample.text_tokens < 2 || sample.text_tokens > kMaxTextTokens) {
    throw usage_error("--text-tokens: {} text tokens; give 2 (one prompt token, one label token) to {}",
                      sample.text_tokens, kMaxTextTokens);
  }
  if (sample.label_tokens < 1 || sample.label_tokens >= sample.text_tokens) {
    throw usage_error(
        "--answer-tokens: {} label tokens of {} text tokens; give at least 1, and fewer than the text tokens",
        sample.label_tokens, sample.text_tokens);
  }
}

/// Adds the sizes of one image, video or volume to the sizes of a sample.
void add_medium_shape(data::SampleShape& shape, const data::SampleShape& medium) {
  shape.row = medium.row;
  shape.patch_grids.insert(shape.patch_grids.end(), medium.patch_grids.begin(), medium.patch_grids.end());
  shape.has_position_axes = shape.has_position_axes || medium.has_position_axes;
  shape.tokens += medium.tokens;
  shape.image_tokens += medium.image_tokens;
  shape.num_images += medium.num_images;
  shape.pixel_rows += medium.pixel_rows;
  shape.num_videos += medium.num_videos;
  shape.video_frames += medium.video_frames;
  shape.num_volumes += medium.num_volumes;
}

void add_mask_shapes(data::SampleShape& shape, const SyntheticSample& sample, int64_t images, int64_t side) {
  shape.masks = sample.masks.value_or(images);
  if (shape.masks == 0) return;
  if (images == 0)
    throw usage_error("--masks: {} without an image; give --images too", format_count(shape.masks, "mask"));
  if (shape.masks < 0 || shape.masks > sample.label_tokens) {
    throw usage_error("--masks: {} masks in {} tokens of an answer, but each mask needs its own token; give 0 to {}",
                      shape.masks, sample.label_tokens, sample.label_tokens);
  }
  shape.num_images_with_masks = std::min(shape.masks, images);
  shape.mask_image_size = side;
}

}  // namespace

data::SampleShape compute_sample_shape(const std::filesystem::path& folder, const SyntheticSample& sample) {
  const auto config = read_model_config(folder);
  const Family& family = find_family(config, folder);
  const MediaCounts counts = count_media(sample, family);
  check_sample(sample, counts);
  // Reads all sizes in config.json, also for a sample without media.
  rethrow_json_errors(folder, [&] { return family.get_context_length(config, folder); });
  data::SampleShape shape;
  if (counts.images > 0) {
    const image::ImageSize size{.height = sample.image_height, .width = sample.image_width};
    const auto image = rethrow_json_errors(
        folder, [&] { return family.compute_image_sample_shape(config, folder, size, sample.image_max_pixels); });
    for (int64_t i = 0; i < counts.images; ++i) add_medium_shape(shape, image);
  }
  if (counts.volumes > 0) {
    const auto volume = rethrow_json_errors(folder, [&] {
      return family.compute_volume_sample_shape(config, folder, sample.volume_size, sample.volume_dtype);
    });
    for (int64_t i = 0; i < counts.volumes; ++i) add_medium_shape(shape, volume);
  }
  if (sample.video_frames > 0) {
    if (family.compute_video_sample_shape == nullptr) {
      throw usage_error(
          "--video-frames: {} frames, but this model family supports no videos; use a family that does ({}), or images",
          sample.video_frames, format_video_model_types());
    }
    const image::VideoInfo video{.num_frames = sample.video_frames,
                                 .fps = sample.video_fps,
                                 .size = {.height = sample.video_height, .width = sample.video_width}};
    ProcessorSettings settings;
    settings.image_max_pixels = sample.image_max_pixels;
    settings.video_fps = sample.sampling_fps;
    settings.video_max_frames = sample.video_max_frames;
    settings.video_layout = sample.video_layout;
    add_medium_shape(shape, rethrow_json_errors(folder, [&] {
                       return family.compute_video_sample_shape(config, folder, video, settings);
                     }));
  }
  shape.tokens += sample.text_tokens;
  shape.label_tokens = sample.label_tokens;
  if (family.get_mask_side != nullptr) {
    add_mask_shapes(shape, sample, counts.images, rethrow_json_errors(folder, [&] {
                      return family.get_mask_side(config, folder, sample.mask_image_size);
                    }));
  } else if (sample.masks.value_or(0) != 0) {
    throw usage_error(
        "--masks: {} in a sample, but this model family predicts no masks; omit the flag, or use a family that does "
        "(prs_med)",
        format_count(*sample.masks, "mask"));
  }
  return shape;
}

ContextLength read_context_length(const std::filesystem::path& folder) {
  const auto config = read_model_config(folder);
  return rethrow_json_errors(folder, [&] { return read_context_length(config, folder); });
}

}  // namespace vlmtrain::models
