#pragma once

#include <ATen/core/Tensor.h>

#include <array>

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

/// Images as bytes, with the normalization that the model applies to them.
struct ByteImages {
  at::Tensor bytes;             ///< uint8 [images, 3, height, width], on any device
  Normalization normalization;  ///< to be applied to each byte
  at::Tensor image_indices{};   ///< int64 [n], indices of the images to use, in order; undefined: all images

  /// Returns the number of images to use.
  int64_t num_images() const { return image_indices.defined() ? image_indices.size(0) : bytes.size(0); }
};

/// Computes (x - mean/rescale_factor) / (std/rescale_factor) in float32. Bit-equal to the
/// `pixel_values` of transformers' torchvision backend, which folds the rescaling into mean and
/// std.
///
/// `pixels`: uint8 [n, 3, height, width] on any device. Returns float32 of the same shape on
/// the same device. Copies nothing between host and device.
at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization);

}  // namespace vlmtrain::image
