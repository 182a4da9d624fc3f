#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::data {

/// Rows and columns of a square of pixels, from its upper left corner on, that a picture fills.
struct ValidRegion {
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t pixels() const { return rows * columns; }
  bool operator==(const ValidRegion&) const = default;
};

/// What a sample, or the samples of a micro-batch, are to draw: a mask for each token of the answers that stands for
/// one. Pictures are squares of the model's side, filled from the upper left corner.
struct Masks {
  std::vector<int64_t> token_positions;  ///< [masks] places of the tokens among those of the sample or batch, ascending
  std::vector<int64_t> image_indices;    ///< [masks] rows of `pixels`
  std::vector<ValidRegion> valid_regions;  ///< [masks]
  std::vector<std::string> structures;     ///< [masks] what they show; may be empty words
  at::Tensor pixels;   ///< uint8 [pictures, 3, side, side], of the pictures that masks lie in; undefined without masks
  at::Tensor targets;  ///< uint8 [masks, side, side], 1 inside a mask; undefined where they are not known

  int64_t count() const { return static_cast<int64_t>(token_positions.size()); }
  bool empty() const { return token_positions.empty(); }
  /// Of all masks together, padding left out.
  int64_t count_valid_pixels() const;
};

}  // namespace vlmtrain::data
