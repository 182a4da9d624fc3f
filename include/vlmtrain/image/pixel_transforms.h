#pragma once

#include <array>
#include <cstdint>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::image {

/// The ranges of random augmentations. sample_augmentation() requires these ranges.
struct AugmentSettings {
  double horizontal_flip_probability = 0;  ///< 0 to 1
  double max_rotation_degrees = 0;         ///< the angle is uniform in ± max_rotation_degrees, >= 0
  double max_brightness_change = 0;        ///< the factor is uniform in 1 ± max_brightness_change, 0 to 1

  /// Returns whether any augmentation is enabled.
  bool is_enabled() const {
    return horizontal_flip_probability > 0 || max_rotation_degrees > 0 || max_brightness_change > 0;
  }
  bool operator==(const AugmentSettings&) const = default;
};

/// The augmentation of an image and its masks, applied in the order of the members. Words of the
/// conversation, such as "left" and "right", do not change.
struct Augmentation {
  bool is_horizontally_flipped = false;  ///< mirror left and right
  double rotation_degrees = 0;           ///< counter-clockwise rotation about the center
  double brightness_factor = 1;  ///< factor of each byte of the image, rounded and clamped to 0 to 255; masks ignore it

  bool operator==(const Augmentation&) const = default;
};

/// Draws an augmentation. The result depends only on `settings` and `seed` and is equal on all
/// machines. Each member has its own random stream: changing one setting does not affect the other
/// members. Throws InternalError if a setting is out of range.
Augmentation sample_augmentation(const AugmentSettings& settings, uint64_t seed);

/// Augments an image, uint8 [3, height, width] RGB on the CPU, and keeps its size. Rotation samples
/// bilinearly; pixels outside of the image are black. The bytes are equal on all machines. Returns
/// the same tensor if the augmentation changes nothing. Thread-safe.
at::Tensor augment_image(const at::Tensor& image, const Augmentation& augmentation);

/// Augments a mask of the image, uint8 [height, width] on the CPU. Each pixel is the pixel
/// nearest to the position that augment_image() samples; pixels outside of the mask are 0. Returns
/// the same tensor if no pixel moves. Thread-safe.
at::Tensor augment_mask(const at::Tensor& mask, const Augmentation& augmentation);

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
