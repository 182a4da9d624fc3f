#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// The anatomical plane of slices: across the superior, anterior or right axis.
enum class SlicePlane { kAxial, kCoronal, kSagittal };

/// The settings of read_slices(): a scan as 2D images, for models that take images.
struct SliceSettings {
  int64_t max_slices = 32;  ///< maximum number of slices, > 0
  SlicePlane plane = SlicePlane::kAxial;
  /// The pairs of values that become 0 and 255, ascending (for CT in Hounsfield units): one window
  /// for all channels, or three for red, green and blue. If empty, the percentiles 0.5 and 99.5 of
  /// the slices' values.
  std::vector<std::array<double, 2>> windows;
};

/// The maximum height and width of a slice. Larger slices are scaled down. Clinical scans are
/// coarser: 4096 pixels are a field of view of 400 mm at 0.1 mm.
inline constexpr int64_t kMaxSlicePixelsPerAxis = 4096;

/// Returns the number of slices: settings.max_slices, or all slices of the scan if there are fewer.
int64_t count_slices(const VolumeInfo& info, const SliceSettings& settings);

/// Returns the size of each slice: its field of view in square pixels, whose side is the smaller
/// spacing of the plane's two axes.
ImageSize compute_slice_size(const VolumeInfo& info, const SliceSettings& settings);

/// Returns the peak host memory of read_slices() in addition to its result, in bytes.
int64_t estimate_slice_reading_memory(const VolumeInfo& info, const SliceSettings& settings);

/// Reads count_slices() evenly spaced slices, from the first to the last of the scan. Each is
/// resampled (bilinear) to compute_slice_size() and returned as uint8 [3, height, width] RGB.
/// Slices follow the radiological convention: axial slices have anterior up and the subject's RIGHT
/// on the LEFT of the image and run from inferior to superior; coronal slices have superior up and
/// right on the left and run from posterior to anterior; sagittal slices have superior up and
/// anterior on the left and run from left to right. Throws UserError (kBadData) for the files that
/// read_volume() rejects, and for a series. Thread-safe.
std::vector<at::Tensor> read_slices(const io::MediaRef& scan, const SliceSettings& settings);

/// Renders the middle axial, coronal and sagittal slices of a volume next to each other, for
/// reports. Orientations are those of read_slices(); each voxel is one pixel. `volume`: [1, right,
/// anterior, superior] of any floating type and scale; the percentiles 1 and 99 of the slices
/// become black and white. Returns uint8 [3, height, width].
at::Tensor render_orthogonal_slices(const at::Tensor& volume);

/// Renders the middle slices of a scan as render_orthogonal_slices() does, of a series those of the
/// mean. The whole field of view is shown in its true proportions. `max_pixels`: the maximum number
/// of pixels of the longest axis. Throws the errors of read_volume().
at::Tensor render_scan_slices(const io::MediaRef& scan, int64_t max_pixels);

}  // namespace vlmtrain::image
