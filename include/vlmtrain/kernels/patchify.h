#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

/// The pictures' patches, a row each: [pictures · whole patches, 3 · patch] of `dtype`, fp32, bf16 or fp16; line by
/// line, channel by channel. What image::normalize_pixels() gives to the bit, rounded once to `dtype`. Bytes are dense
/// and move once. REQUIRES: has(kPatchify, pixels.bytes). Throws InternalError for patches larger than a picture, and
/// of 2³¹ bytes or more.
at::Tensor patchify(const image::BytePixels& pixels, image::ImageSize patch, at::ScalarType dtype);

}  // namespace vlmtrain::kernels
