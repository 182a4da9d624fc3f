#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::image {

/// How the samples around a pixel are weighted: the triangle, Keys' cubic with a = -0.5, sin(πx)/(πx) under a window of
/// three lobes.
enum class Filter { kBilinear, kBicubic, kLanczos };

/// Resizes a picture, antialiased: when it shrinks, the filter is stretched by the ratio, so that every source pixel
/// counts.
///
/// `image` is a uint8 CPU tensor [channels, height, width]; so is the result, contiguous, of the asked size. The bytes
/// are those that torchvision 0.29 with torch 2.15 gives (`resize(..., antialias=True)` on uint8): columns first, then
/// rows, each rounded to uint8, with the filter's weights as 16-bit integers. LibTorch 2.11 has no Lanczos; this does
/// all three.
///
/// Thread-safe; runs on the calling thread alone.
at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width, Filter filter);

/// The same with the bytes that Pillow up to 12 gives (`Image.resize`): its weights have 22 fractional bits. Pillow 13
/// resamples rows first for some sizes, which moves bytes by one. Not compared for Lanczos.
at::Tensor resize_pillow(const at::Tensor& image, int64_t height, int64_t width, Filter filter);

/// The same in floating point, rounded to a byte once, at the end: what comes nearest to torchvision's `resize` of a
/// float tensor. Halves, and what is less than 1e-6 below them, go up, so that the last bits of the sums do not matter.
at::Tensor resize_float(const at::Tensor& image, int64_t height, int64_t width, Filter filter);

}  // namespace vlmtrain::image
