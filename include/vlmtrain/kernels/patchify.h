#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// Normalizes images and splits them into patches. Returns one row per patch, `[images · patches
/// per image, columns]` of `dtype` (fp32, bf16 or fp16), in order of channel, line, column. Columns
/// beyond 3 · patch.height · patch.width are zero. Pixels beyond the last whole patch are dropped.
/// Bit-identical to image::normalize_pixels() before the rounding to `dtype`. Reads and writes each
/// byte once.
///
/// REQUIRES: is_available(kPatchify, pixels.bytes); the bytes are dense. Throws InternalError for
/// patches larger than an image or of 2³¹ bytes or more, and for fewer columns than a patch has bytes.
at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype, int64_t columns);

namespace reference {

/// The same with ATen's operations and roundings, for tests; the result is bit-identical.
at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype, int64_t columns);

}  // namespace reference

}  // namespace vlmtrain::kernels
