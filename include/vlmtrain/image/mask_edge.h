#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::image {

/// The pixels of a mask, uint8 [height, width] on the CPU (anything but 0 belongs to it), that have a neighbour left,
/// right, above or below which does not belong to it; what is beyond the picture's border does not. Contiguous, 0
/// and 1.
at::Tensor find_mask_edge(const at::Tensor& mask);

}  // namespace vlmtrain::image
