#include "vlmtrain/models/hypothetical_sample.h"

#include "models/checkpoints/from_settings.h"
#include "models/checkpoints/read_model_config.h"
#include "models/registry.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

constexpr int64_t kMostImages = 10'000;
constexpr int64_t kLongestSide = 100'000;
constexpr int64_t kMostTextTokens = 10'000'000;

void check(const HypotheticalSample& sample) {
  if (sample.images < 0 || sample.images > kMostImages) {
    throw usage_error("a sample of {} images: give 0 (text only) to {}", sample.images, kMostImages);
  }
  const auto is_side = [](int64_t pixels) { return pixels >= 1 && pixels <= kLongestSide; };
  if (sample.images > 0 && !(is_side(sample.image_width) && is_side(sample.image_height))) {
    throw usage_error("an image of {} x {} pixels: give a width and a height of 1 to {}", sample.image_width,
                      sample.image_height, kLongestSide);
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

}  // namespace

data::SampleShape shape_of(const std::filesystem::path& folder, const HypotheticalSample& sample) {
  check(sample);
  const auto config = read_model_config(folder);
  const Family& family = family_of(config, folder);
  data::SampleShape shape;
  if (sample.images > 0) {
    const image::ImageSize size{.height = sample.image_height, .width = sample.image_width};
    shape = from_settings(folder, [&] { return family.image_shape(config, folder, size, sample.image_max_pixels); });
    const auto one = shape.grids;
    for (int64_t i = 1; i < sample.images; ++i) shape.grids.insert(shape.grids.end(), one.begin(), one.end());
    for (int64_t* count : {&shape.tokens, &shape.image_tokens, &shape.images, &shape.pixel_rows})
      *count *= sample.images;
  }
  shape.tokens += sample.text_tokens;
  shape.label_tokens = sample.label_tokens;
  return shape;
}

}  // namespace vlmtrain::models
