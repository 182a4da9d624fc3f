#pragma once

#include <string>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::image {

/// Returns an image, uint8 [3, height, width] RGB on the CPU, as a baseline JPEG file. `quality`:
/// as in libjpeg, 1 to 100. For reports, since JPEG is lossy. Aborts if memory is exhausted.
std::string encode_jpeg(const at::Tensor& image, int quality);

/// Returns an image, uint8 [3, height, width] RGB on the CPU, as a PNG file.
std::string encode_png(const at::Tensor& image);

/// Returns a mask, uint8 [height, width] on the CPU, as an 8-bit gray PNG file with 255 for nonzero
/// pixels.
std::string encode_mask_png(const at::Tensor& mask);

}  // namespace vlmtrain::image
