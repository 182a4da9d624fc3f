#pragma once

#include <cstdint>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::image {

/// Resampling filters: the triangle, Keys' cubic with a = -0.5, and sin(πx)/(πx) windowed to three
/// lobes.
enum class ResampleFilter { kBilinear, kBicubic, kLanczos };

/// Resizes an image with antialiasing: if the image shrinks, the filter is stretched by the ratio,
/// so that every source pixel contributes.
///
/// `image`: uint8 [channels, height, width] on the CPU. The result has the same type and is
/// contiguous. The bytes equal those of torchvision 0.29 with torch 2.15 (`resize(...,
/// antialias=True)` on uint8): columns first, then rows, each rounded to uint8, with 16-bit integer
/// weights. LibTorch 2.11 has no Lanczos filter; this function has all three.
///
/// Thread-safe; uses only the calling thread.
at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width, ResampleFilter filter);

/// Resizes like resize_image(). The bytes equal those of Pillow up to version 12 (`Image.resize`),
/// whose weights have 22 fractional bits. Pillow 13 resamples rows first for some sizes, which
/// changes bytes by one. Lanczos has not been compared with Pillow.
at::Tensor resize_like_pillow(const at::Tensor& image, int64_t height, int64_t width, ResampleFilter filter);

/// Resizes like resize_image() in floating point and rounds to bytes once at the end. This is the
/// closest match to torchvision's `resize(...)` of a float tensor. Halves, and values less than
/// 1e-6 below them, are rounded up, so that the result does not depend on the last bits of the
/// sums.
at::Tensor resize_in_floating_point(const at::Tensor& image, int64_t height, int64_t width, ResampleFilter filter);

/// Resizes a mask, uint8 [height, width] on the CPU, by nearest neighbor: output row i is source
/// row floor((i + 0.5) · source height / height), and columns likewise, in integer arithmetic
/// (torch's mode "nearest-exact"). The mask keeps its position relative to an image resized with
/// antialiasing. The result is contiguous. Thread-safe.
at::Tensor resize_mask(const at::Tensor& mask, int64_t height, int64_t width);

}  // namespace vlmtrain::image
