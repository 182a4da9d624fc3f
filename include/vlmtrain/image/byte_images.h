#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/image/pixel_transforms.h"

namespace vlmtrain::image {

/// Images as bytes, with the normalization that the model applies to them.
struct ByteImages {
  at::Tensor bytes;             ///< uint8 [images, 3, height, width], on any device
  Normalization normalization;  ///< to be applied to each byte
  at::Tensor image_indices{};   ///< int64 [n], indices of the images to use, in order; undefined: all images

  /// Returns the number of images to use.
  int64_t num_images() const { return image_indices.defined() ? image_indices.size(0) : bytes.size(0); }
};

}  // namespace vlmtrain::image
