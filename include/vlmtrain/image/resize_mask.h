#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::image {

/// Resizes a mask, uint8 [height, width] on the CPU, to the nearest pixels: output row i is source row
/// floor((i + 0.5) · source height / height), columns alike, in whole numbers (torch's mode "nearest-exact"). So a mask
/// keeps its place in a picture that is resized with antialiasing. Contiguous; thread-safe.
at::Tensor resize_mask(const at::Tensor& mask, int64_t height, int64_t width);

}  // namespace vlmtrain::image
