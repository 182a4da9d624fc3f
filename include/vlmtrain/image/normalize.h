#pragma once

#include <array>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::image {

/// The normalization of pixel bytes for a model, (byte · rescale_factor - mean) / std, from a
/// checkpoint's preprocessor_config.json.
struct Normalization {
  std::array<double, 3> mean;  ///< of each channel, on the scale 0 to 1
  std::array<double, 3> std;   ///< of each channel, on the scale 0 to 1
  double rescale_factor;       ///< maps a byte to the scale 0 to 1, usually 1/255

  bool operator==(const Normalization&) const = default;
};

/// The equivalent normalization of unscaled bytes, (byte - mean) / std: both values are multiplied
/// by 1 / rescale_factor in float32, as in transformers' torchvision backend.
struct ByteNormalization {
  std::array<float, 3> mean;
  std::array<float, 3> std;
};

ByteNormalization to_byte_normalization(const Normalization& normalization);

/// Computes (x - mean/rescale_factor) / (std/rescale_factor) in float32. Bit-equal to the
/// `pixel_values` of transformers' torchvision backend, which folds the rescaling into mean and
/// std.
///
/// `pixels`: uint8 [n, 3, height, width] on any device. Returns float32 of the same shape on
/// the same device. Copies nothing between host and device.
at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization);

}  // namespace vlmtrain::image
