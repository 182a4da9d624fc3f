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

/// (x - mean/rescale_factor) / (std/rescale_factor) in float32, with the roundings of transformers' torchvision
/// backend, which folds the rescaling into mean and std: bit-equal to its `pixel_values`.
///
/// `pixels` is uint8 [n, 3, height, width] on any device; the result is float32 of the same shape on that device.
/// Nothing is copied between host and device.
at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization);

}  // namespace vlmtrain::image
