#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "vlmtrain/image/size.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

enum class SlicePlane { kAxial, kCoronal, kSagittal };

/// A scan as pictures, for models that take pictures.
struct SliceSettings {
  int64_t count = 32;
  SlicePlane plane = SlicePlane::kAxial;
  /// Values that become 0 and 255 (of CT: Hounsfield units). One window is that of red, green and blue alike, three are
  /// one each; none: the percentiles 0.5 and 99.5 of the slices' values.
  std::vector<std::array<double, 2>> windows;
};

/// A slice's longer side at most; both are scaled down to it.
inline constexpr int64_t kMaxSlicePixels = 4096;

/// How many slices become of it: at most those there are.
int64_t count_slices(const VolumeInfo& info, const SliceSettings& settings);

/// Pixels of each slice: the plane's field of view in squares of the smaller spacing of its two axes.
ImageSize compute_slice_size(const VolumeInfo& info, const SliceSettings& settings);

/// Most of the host's memory that read_slices() takes beside what it gives.
int64_t estimate_slice_reading_bytes(const VolumeInfo& info, const SliceSettings& settings);

/// Slices spread evenly from the first to the last, resampled (bilinear) to compute_slice_size(): uint8 [3, height,
/// width] each. They are shown as a radiologist's viewer shows them: axial with the front above and the subject's RIGHT
/// on the LEFT of the picture, from the lowest to the highest; coronal with the top above and right on the left, from
/// the back to the front; sagittal with the top above and the front on the left, from the subject's left to the right.
/// Of the file, read_volume()'s rules hold. Throws UserError (kBadData), also for a series. Thread-safe.
std::vector<at::Tensor> read_slices(const io::MediaRef& medium, const SliceSettings& settings);

}  // namespace vlmtrain::image
