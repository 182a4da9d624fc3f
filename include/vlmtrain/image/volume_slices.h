#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "vlmtrain/image/size.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

enum class SlicePlane { kAxial, kCoronal, kSagittal };

/// The settings of read_slices(): a scan as 2D images, for models that take images.
struct SliceSettings {
  int64_t count = 32;
  SlicePlane plane = SlicePlane::kAxial;
  /// Values that become 0 and 255 (for CT: Hounsfield units). One window for all channels, or three
  /// for red, green and blue; none: the percentiles 0.5 and 99.5 of the slices' values.
  std::vector<std::array<double, 2>> windows;
};

/// The maximum side length of a slice; larger slices are scaled down. Finer than any clinical scan:
/// 4096 pixels are a field of view of 400 mm at 0.1 mm.
inline constexpr int64_t kMaxSlicePixels = 4096;

/// Returns the number of slices: settings.count, or all slices of the scan if there are fewer.
int64_t count_slices(const VolumeInfo& info, const SliceSettings& settings);

/// Returns the size of each slice: the field of view in square pixels of the smaller spacing of the
/// plane's axes.
ImageSize compute_slice_size(const VolumeInfo& info, const SliceSettings& settings);

/// Returns the peak host memory of read_slices() in addition to its result.
int64_t estimate_slice_reading_bytes(const VolumeInfo& info, const SliceSettings& settings);

/// Reads evenly spaced slices, from the first to the last of the scan, resampled (bilinear) to
/// compute_slice_size(): uint8 [3, height, width] each. Slices follow the radiological convention:
/// axial with anterior up and the subject's RIGHT on the LEFT of the image, from inferior to
/// superior; coronal with superior up and right on the left, from posterior to anterior; sagittal
/// with superior up and anterior on the left, from left to right. Reads the file as read_volume()
/// does. Throws UserError (kBadData), also for a series. Thread-safe.
std::vector<at::Tensor> read_slices(const io::MediaRef& medium, const SliceSettings& settings);

/// Renders the middle axial, coronal and sagittal slices of a volume next to each other, for
/// reports, oriented as in read_slices(), one pixel for each voxel. `volume`: [1, right, anterior,
/// superior] of any floating type and scale; the percentiles 1 and 99 of the slices become black
/// and white. Returns uint8 [3, height, width].
at::Tensor render_orthogonal_slices(const at::Tensor& volume);

/// Renders the middle slices of a file with its whole field of view in its proportions, the longest
/// axis with at most `longest` pixels; for a series, of the mean. Throws UserError (kBadData) as
/// read_volume() does.
at::Tensor render_scan_slices(const io::MediaRef& scan, int64_t longest);

}  // namespace vlmtrain::image
