#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/image/normalize.h"

namespace vlmtrain::models {

/// A convolution over the normalised pixels whose stride is its kernel, without padding: `weight` is [hidden, 3, patch
/// height, patch width], or [hidden, 3, frames, patch height, patch width] where the frames lie one below the other;
/// `bias` is [hidden], or undefined. The result is [pictures · patches, hidden]. Pixels, rounded once from float32 to
/// the weight's type, get no gradient; those beyond the last whole patch are dropped, as 384 are no multiple of 14.
at::Tensor embed_patches(const image::BytePixels& pixels, const at::Tensor& weight, const at::Tensor& bias);

/// The normalised pixels of whole pictures, rounded once from float32 to `dtype`: [pictures, 3, height, width].
at::Tensor normalize_images(const image::BytePixels& pixels, at::ScalarType dtype);

/// Gathers each scale × scale square of patches into one row, its patches line by line: [tiles · side², features] →
/// [tiles · (side / scale)², features · scale²].
at::Tensor pixel_shuffle(const at::Tensor& patches, int64_t side, int64_t scale);

}  // namespace vlmtrain::models
