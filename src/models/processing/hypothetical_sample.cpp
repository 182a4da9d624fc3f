#include "vlmtrain/models/hypothetical_sample.h"

#include <algorithm>

#include "models/checkpoints/from_settings.h"
#include "models/checkpoints/read_model_config.h"
#include "models/processing/extended_context.h"
#include "models/registry.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

constexpr int64_t kMostImages = 10'000;
constexpr double kMostFps = 1e4;
constexpr int64_t kLongestSide = 100'000;
constexpr int64_t kMostTextTokens = 10'000'000;

/// How many media a sample of the family has.
struct Counts {
  int64_t images = 0;
  int64_t volumes = 0;
};

Counts counts_of(const HypotheticalSample& sample, const Family& family) {
  const bool takes_pictures = family.image_shape != nullptr;
  const bool takes_volumes = family.volume_shape != nullptr;
  Counts counts{.images = sample.images.value_or(takes_pictures ? 1 : 0),
                .volumes = sample.volumes.value_or(takes_volumes && !takes_pictures ? 1 : 0)};
  if (counts.images > 0 && !takes_pictures) {
    throw usage_error("a sample of {} images: {} takes volumes, no pictures; give --volumes {} instead", counts.images,
                      family.model_types.front(), counts.images);
  }
  if (counts.volumes != 0 && !takes_volumes) {
    throw usage_error(
        "a sample of {} volumes: this model's family takes no volumes; take one that does ({}), or images instead",
        counts.volumes, families_with_volumes());
  }
  return counts;
}

void check(const HypotheticalSample& sample, const Counts& counts) {
  if (counts.images < 0 || counts.images > kMostImages) {
    throw usage_error("a sample of {} images: give 0 (text only) to {}", counts.images, kMostImages);
  }
  if (counts.volumes < 0 || counts.volumes > kMostImages) {
    throw usage_error("a sample of {} volumes: give 0 (text only) to {}", counts.volumes, kMostImages);
  }
  const auto is_side = [](int64_t pixels) { return pixels >= 1 && pixels <= kLongestSide; };
  if (counts.images > 0 && !(is_side(sample.image_width) && is_side(sample.image_height))) {
    throw usage_error("an image of {} x {} pixels: give a width and a height of 1 to {}", sample.image_width,
                      sample.image_height, kLongestSide);
  }
  if (sample.video_frames < 0 || sample.video_frames > image::kMostVideoFrames) {
    throw usage_error("a video of {} frames: give 0 (no video) to {}", sample.video_frames, image::kMostVideoFrames);
  }
  if (sample.video_frames > 0 && !(is_side(sample.video_width) && is_side(sample.video_height))) {
    throw usage_error("a video of {} x {} pixels: give a width and a height of 1 to {}", sample.video_width,
                      sample.video_height, kLongestSide);
  }
  if (!(sample.video_fps >= 0 && sample.video_fps <= kMostFps)) {
    throw usage_error("a video of {} frames a second: give more than 0 and at most {}", sample.video_fps, kMostFps);
  }
  if (sample.text_tokens < 2 || sample.text_tokens > kMostTextTokens) {
    throw usage_error("a sample of {} text tokens: give 2 (one to read, one to learn) to {}", sample.text_tokens,
                      kMostTextTokens);
  }
  if (sample.label_tokens < 1 || sample.label_tokens >= sample.text_tokens) {
    throw usage_error("{} label tokens of {} text tokens: give at least 1 and fewer than the text has",
                      sample.label_tokens, sample.text_tokens);
  }
}

/// Puts another medium of a sample behind those that it has.
void add(data::SampleShape& shape, const data::SampleShape& medium) {
  shape.row = medium.row;
  shape.grids.insert(shape.grids.end(), medium.grids.begin(), medium.grids.end());
  shape.tokens += medium.tokens;
  shape.image_tokens += medium.image_tokens;
  shape.images += medium.images;
  shape.pixel_rows += medium.pixel_rows;
  shape.videos += medium.videos;
  shape.video_frames += medium.video_frames;
  shape.volumes += medium.volumes;
}

void add_masks(data::SampleShape& shape, const HypotheticalSample& sample, int64_t images, int64_t side) {
  shape.masks = sample.masks.value_or(images);
  if (shape.masks == 0) return;
  if (images == 0) throw usage_error("{} masks without an image: give --images too", shape.masks);
  if (shape.masks < 0 || shape.masks > sample.label_tokens) {
    throw usage_error("{} masks in {} tokens of an answer: each has a token of its own; give 0 to {}", shape.masks,
                      sample.label_tokens, sample.label_tokens);
  }
  shape.mask_pictures = std::min(shape.masks, images);
  shape.mask_side = side;
}

}  // namespace

data::SampleShape shape_of(const std::filesystem::path& folder, const HypotheticalSample& sample) {
  const auto config = read_model_config(folder);
  const Family& family = family_of(config, folder);
  const Counts counts = counts_of(sample, family);
  check(sample, counts);
  data::SampleShape shape;
  if (counts.images > 0) {
    const image::ImageSize size{.height = sample.image_height, .width = sample.image_width};
    const auto image =
        from_settings(folder, [&] { return family.image_shape(config, folder, size, sample.image_max_pixels); });
    for (int64_t i = 0; i < counts.images; ++i) add(shape, image);
  }
  if (counts.volumes > 0) {
    const auto volume = from_settings(
        folder, [&] { return family.volume_shape(config, folder, sample.volume_size, sample.volume_dtype); });
    for (int64_t i = 0; i < counts.volumes; ++i) add(shape, volume);
  }
  if (sample.video_frames > 0) {
    if (family.video_shape == nullptr) {
      throw usage_error(
          "a video of {} frames: this model's family takes no videos; take one that does ({}), or images instead",
          sample.video_frames, families_with_videos());
    }
    const image::VideoInfo video{.frames = sample.video_frames,
                                 .fps = sample.video_fps,
                                 .size = {.height = sample.video_height, .width = sample.video_width}};
    ProcessorSettings settings;
    settings.image_max_pixels = sample.image_max_pixels;
    settings.video_fps = sample.wanted_fps;
    settings.video_max_frames = sample.video_max_frames;
    settings.video_layout = sample.video_layout;
    add(shape, from_settings(folder, [&] { return family.video_shape(config, folder, video, settings); }));
  }
  shape.tokens += sample.text_tokens;
  shape.label_tokens = sample.label_tokens;
  if (family.mask_side != nullptr) {
    add_masks(shape, sample, counts.images,
              from_settings(folder, [&] { return family.mask_side(config, folder, sample.mask_image_size); }));
  } else if (sample.masks.value_or(0) != 0) {
    throw usage_error("{} masks: this model's family draws none; leave --masks out, or take one that does (prs_med)",
                      *sample.masks);
  }
  return shape;
}

ContextLength context_length_of(const std::filesystem::path& folder) {
  const auto config = read_model_config(folder);
  return from_settings(folder, [&] { return context_length_of(config, folder); });
}

}  // namespace vlmtrain::models
