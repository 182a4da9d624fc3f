#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::models {

/// What makes features of the pictures that masks are drawn in.
class MaskEncoder {
 public:
  /// Pixels of a picture's side to one feature.
  static constexpr int64_t kStride = 16;

  MaskEncoder() = default;
  virtual ~MaskEncoder() = default;
  MaskEncoder(const MaskEncoder&) = delete;
  MaskEncoder& operator=(const MaskEncoder&) = delete;

  /// Normalised pixels [pictures, 3, side, side] of the model's dtype → features, picture by picture and row by row:
  /// [pictures · (side / kStride)², channels]. TinyViT takes any side that is a multiple of kStride. The first
  /// `recomputed_blocks` keep only their input.
  virtual at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const = 0;
  virtual int64_t blocks() const = 0;
};

}  // namespace vlmtrain::models
