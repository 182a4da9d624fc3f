#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::image {

/// The three middle slices of a volume side by side, for people: axial, coronal and sagittal, as read_slices() lays
/// them, each a pixel a voxel. `volume` [1, right, front, top] of any floating type, whatever its scale: the
/// percentiles 1 and 99 of what is shown become black and white → uint8 [3, height, width].
at::Tensor orthogonal_slices(const at::Tensor& volume);

}  // namespace vlmtrain::image
