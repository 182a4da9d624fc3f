#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

/// The three middle slices of a volume side by side, for people: axial, coronal and sagittal, as read_slices() lays
/// them, each a pixel a voxel. `volume` [1, right, front, top] of any floating type, whatever its scale: the
/// percentiles 1 and 99 of what is shown become black and white → uint8 [3, height, width].
at::Tensor render_orthogonal_slices(const at::Tensor& volume);

/// The same of a file, whatever a model sees of it: its whole field of view in its proportions, the longest axis in
/// `longest` pixels at most; of a series the mean. Throws UserError (kBadData) as read_volume() does.
at::Tensor render_scan_slices(const io::MediaRef& scan, int64_t longest);

}  // namespace vlmtrain::image
