#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::image {

/// How much pictures are changed at random before a model sees them.
struct AugmentSettings {
  double flip = 0;              ///< probability of a horizontal flip, 0 to 1
  double rotation_degrees = 0;  ///< the angle is uniform in ± this, at least 0
  double brightness = 0;        ///< the factor is uniform in 1 ± this, 0 to 1

  bool any() const { return flip > 0 || rotation_degrees > 0 || brightness > 0; }
  bool operator==(const AugmentSettings&) const = default;
};

/// What is done to one picture and its masks, in this order. What a text says of left and right stays as it is.
struct Augmentation {
  bool flip = false;      ///< left and right are swapped
  double degrees = 0;     ///< counter-clockwise, about the centre
  double brightness = 1;  ///< what each byte of the picture is multiplied with

  bool operator==(const Augmentation&) const = default;
};

/// A function of settings and seed, the same on every machine. Each number has a random stream of its own: another
/// setting does not change it.
Augmentation draw_augmentation(const AugmentSettings& settings, uint64_t seed);

/// Of a picture, uint8 [3, height, width] RGB on the CPU: as large afterwards. A rotated one is sampled bilinearly, and
/// black where there was none; corners that leave it are lost. Brightness is rounded to bytes. Bytes are the same on
/// every machine. The same tensor where nothing is to be done; thread-safe.
at::Tensor augment_image(const at::Tensor& image, const Augmentation& augmentation);

/// Of the picture's mask, uint8 [height, width] on the CPU: each pixel is the nearest one to where augment_image
/// samples the picture, 0 where there was none. The same tensor where its pixels stay where they are; thread-safe.
at::Tensor augment_mask(const at::Tensor& mask, const Augmentation& augmentation);

}  // namespace vlmtrain::image
