#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::image {

/// The ranges of random augmentations.
struct AugmentSettings {
  double flip = 0;              ///< probability of a horizontal flip, 0 to 1
  double rotation_degrees = 0;  ///< maximum angle of a uniform rotation in both directions, >= 0
  double brightness = 0;        ///< the factor is uniform in 1 ± brightness, 0 to 1

  bool any() const { return flip > 0 || rotation_degrees > 0 || brightness > 0; }
  bool operator==(const AugmentSettings&) const = default;
};

/// The augmentation of an image and its masks, applied in the order of the members. Words of the
/// conversation, such as left and right, are not changed.
struct Augmentation {
  bool flip = false;      ///< mirror left and right
  double degrees = 0;     ///< counter-clockwise rotation about the center
  double brightness = 1;  ///< factor of each byte of the image

  bool operator==(const Augmentation&) const = default;
};

/// Draws an augmentation, a function of settings and seed that is equal on all machines. Each
/// member has a random stream of its own, so that changing one setting does not affect the other
/// members.
Augmentation draw_augmentation(const AugmentSettings& settings, uint64_t seed);

/// Augments an image, uint8 [3, height, width] RGB on the CPU, and keeps its size. Rotation samples
/// bilinearly, with black outside of the image. The bytes are equal on all machines. Returns the
/// same tensor if there is nothing to do. Thread-safe.
at::Tensor augment_image(const at::Tensor& image, const Augmentation& augmentation);

/// Augments a mask of the image, uint8 [height, width] on the CPU. Each pixel is the nearest one to
/// the position that augment_image() samples, 0 outside of the mask. Returns the same tensor if no
/// pixel moves. Thread-safe.
at::Tensor augment_mask(const at::Tensor& mask, const Augmentation& augmentation);

}  // namespace vlmtrain::image
