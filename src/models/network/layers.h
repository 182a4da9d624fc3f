#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models {

using nn::Activation;

/// Returns the activation that transformers calls `name`. `key` and `source`, the file, are named
/// in errors. Throws UserError (kBadData) for an unsupported name.
Activation parse_activation(std::string_view name, std::string_view key, const std::string& source);

/// Computes the activation. Only x is saved for the backward pass.
at::Tensor activate(Activation activation, const at::Tensor& x);

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
