#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace vlmtrain::image {

/// What turns bytes into a model's input, as a checkpoint's preprocessor_config.json gives it.
struct Normalization {
  std::array<double, 3> mean;  ///< of each channel, on the scale 0..1
  std::array<double, 3> std;   ///< of each channel, on the scale 0..1
  double rescale_factor;       ///< brings a byte to the scale 0..1, usually 1/255

  bool operator==(const Normalization&) const = default;
};

/// The same for bytes as they are: mean and deviation divided by the rescale factor, rounded to float32 as
/// transformers' torchvision backend rounds them.
struct ByteNormalization {
  std::array<float, 3> mean;
  std::array<float, 3> std;
};

ByteNormalization to_byte_normalization(const Normalization& normalization);

/// Pixels as samples have them, and what makes a model's input of them.
struct BytePixels {
  at::Tensor bytes;             ///< uint8 [pictures, 3, height, width]
  Normalization normalization;  ///< of each byte
  at::Tensor order{};           ///< int64 [n], which pictures there are, and in what order; undefined: all as they lie

  int64_t num_images() const { return order.defined() ? order.size(0) : bytes.size(0); }
};

/// (x - mean/rescale_factor) / (std/rescale_factor) in float32, with the roundings of transformers' torchvision
/// backend, which folds the rescaling into mean and std: bit-equal to its `pixel_values`.
///
/// `pixels` is uint8 [n, 3, height, width] on any device; the result is float32 of the same shape on that device.
/// Nothing is copied between host and device.
at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization);

}  // namespace vlmtrain::image
