#include "vlmtrain/data/shape.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

SampleShape shape_of(const Sample& sample) {
  SampleShape shape{.tokens = sample.tokens(),
                    .label_tokens = sample.label_tokens(),
                    .image_tokens = std::ssize(sample.image_token_positions),
                    .images = sample.images};
  if (sample.tiles.defined()) {
    shape.tiles = sample.tiles.size(0);
    shape.tile_height = sample.tiles.size(2);
    shape.tile_width = sample.tiles.size(3);
  }
  return shape;
}

Sample sample_of(const SampleShape& shape) {
  VLMTRAIN_CHECK(shape.image_tokens + shape.label_tokens <= shape.tokens && shape.label_tokens < shape.tokens,
                 "{} image tokens and {} label tokens in {} tokens", shape.image_tokens, shape.label_tokens,
                 shape.tokens);
  Sample sample;
  sample.token_ids.assign(static_cast<size_t>(shape.tokens), 0);
  sample.is_label.assign(static_cast<size_t>(shape.tokens), 0);
  std::fill(sample.is_label.end() - shape.label_tokens, sample.is_label.end(), char{1});
  sample.image_token_positions.resize(static_cast<size_t>(shape.image_tokens));
  std::iota(sample.image_token_positions.begin(), sample.image_token_positions.end(), int64_t{0});
  sample.images = shape.images;
  if (shape.tiles > 0) {
    sample.tiles = at::empty({shape.tiles, 3, shape.tile_height, shape.tile_width},
                             at::TensorOptions(at::kByte).device(at::kMeta));
  }
  return sample;
}

}  // namespace vlmtrain::data
