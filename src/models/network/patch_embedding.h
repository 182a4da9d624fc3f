#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/image/byte_images.h"

namespace vlmtrain::models {

/// Computes the patch embedding, a convolution of normalized pixels whose stride equals its kernel.
/// Returns [images · patches, hidden]. `weight` is [hidden, 3, patch height, patch width], or
/// [hidden, 3, frames, patch height, patch width] for frames stored one below the other; `bias` is
/// [hidden] or undefined. Pixels are rounded once from float32 to the weight's dtype and get no
/// gradient. Pixels after the last full patch are dropped, as transformers does for 384 pixels and
/// patches of 14.
at::Tensor embed_patches(const image::ByteImages& pixels, const at::Tensor& weight, const at::Tensor& bias);

/// Returns the normalized pixels of full images, rounded once from float32 to `dtype`: [images, 3,
/// height, width].
at::Tensor normalize_images(const image::ByteImages& pixels, at::ScalarType dtype);

/// Concatenates the features of each scale × scale square of patches, row by row: [tiles · side²,
/// features] → [tiles · (side / scale)², features · scale²]. `side` is the number of patches along
/// a tile's side, a multiple of `scale`.
at::Tensor pixel_shuffle(const at::Tensor& patches, int64_t side, int64_t scale);

}  // namespace vlmtrain::models
