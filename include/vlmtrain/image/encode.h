#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace vlmtrain::image {

/// A picture, uint8 [3, height, width] RGB on the CPU, as the bytes of a baseline JPEG file. `quality` is libjpeg's, 1
/// to 100. For pictures that people look at; nothing is trained on them.
std::string encode_jpeg(const at::Tensor& image, int quality);

/// The same as those of a PNG file, which keeps every byte.
std::string encode_png(const at::Tensor& image);

/// A mask, uint8 [height, width] on the CPU, as those of a grey PNG file of 8 bits: 255 where it is not 0.
std::string encode_mask_png(const at::Tensor& mask);

}  // namespace vlmtrain::image
