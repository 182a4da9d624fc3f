#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// Values of the three axes of a volume in RAS+ orientation (towards right, anterior, superior), as
/// in MONAI and nibabel after a reorientation.
template <class T>
using PerAxis = std::array<T, 3>;

/// The maximum length of an axis of space or time. A header with a longer axis is treated as
/// corrupt.
inline constexpr int64_t kMaxVoxelsPerAxis = 16'384;
/// The maximum number of voxels per frame, 16 GiB in float32.
inline constexpr int64_t kMaxVoxelsPerFrame = int64_t{1} << 32;

/// The intensity normalization of a volume. Statistics are computed over all resampled voxels,
/// before cropping and padding.
enum class VolumeNormalization {
  kZScore,            ///< mean 0, standard deviation 1
  kZScoreForeground,  ///< kZScore computed over nonzero voxels; zeros stay 0
  kPercentile,        ///< VolumeSettings::percentiles become 0 and 1; clipped
  kWindow,            ///< the values of VolumeSettings::window become 0 and 1; clipped
  kNone,
};

/// The treatment of files with a time axis, such as functional MRI.
enum class TimeSeriesMode {
  kRejected,       ///< files with more than one frame are data errors
  kMean,           ///< one volume, the mean of all frames
  kSampledFrames,  ///< one volume for each of up to VolumeSettings::max_frames evenly spaced frames
};

/// The settings of read_volume().
struct VolumeSettings {
  PerAxis<int64_t> size{96, 96, 96};  ///< voxels of the result, each > 0
  /// mm per voxel, > 0. If set, the scan is resampled to it and cropped or padded to `size`. If not
  /// set, the whole field of view is resized to `size`.
  std::optional<PerAxis<double>> spacing;
  VolumeNormalization normalization = VolumeNormalization::kZScore;
  std::array<double, 2> percentiles{0.5, 99.5};  ///< for kPercentile: ascending, 0 to 100
  std::array<double, 2> window{-160, 240};       ///< for kWindow: ascending; for CT in Hounsfield units
  TimeSeriesMode time_series_mode = TimeSeriesMode::kRejected;
  int64_t max_frames = 8;             ///< for TimeSeriesMode::kSampledFrames, > 0
  at::ScalarType dtype = kFloatType;  ///< of the result: at::kFloat or at::kHalf
};

/// The properties of a scan, from its header.
struct VolumeInfo {
  std::array<int64_t, 3> size{};  ///< voxels, in file order
  std::array<double, 3>
      spacing{};  ///< mm, in file order: lengths of the affine's columns. The header's units are ignored, as in nibabel
  std::string orientation;  ///< directions of the file's axes as in nibabel's aff2axcodes(), such as "LAS"
  int64_t num_frames = 1;   ///< length of the time axis; 1 without one
};

/// Reads and validates the header of a NIfTI-1 or NIfTI-2 file (.nii, .nii.gz; detected by
/// content). Checks that the file can hold the voxels that the header promises. Source of the
/// formats:
/// nifti1.h (NIfTI-1.1) and nifti2.h of the NIfTI reference library. Axis directions are as in
/// nibabel: the permutation with flips that is nearest to the sform, else to the qform, else to the
/// spacing with x towards the left. Throws UserError (kBadData) for .hdr/.img pairs, DICOM, axes of
/// no or too many voxels, complex and color types, singular affines and truncated files.
/// Thread-safe.
VolumeInfo read_volume_info(const io::MediaRef& scan);

/// Returns the number of volumes that read_volume() returns. Throws UserError (kBadData) for a
/// series with TimeSeriesMode::kRejected.
int64_t count_volumes(const VolumeInfo& info, const VolumeSettings& settings);

/// Returns the peak host memory of read_volume() in addition to its result, in bytes. The scan
/// itself is never held in memory. kNone and kWindow need a second copy of the result in fp32;
/// other normalizations need the whole field of view at the result's spacing.
int64_t estimate_volume_reading_memory(const VolumeInfo& info, const VolumeSettings& settings);

/// Reads a scan, reorients it to RAS+, resamples (trilinear), normalizes, and crops or pads it.
/// Returns `settings.dtype` [count_volumes(), 1, right, anterior, superior].
///
/// Equals MONAI's LoadImage, EnsureChannelFirst, Orientation("RAS"), Spacing(mode="bilinear",
/// padding_mode="border") or Resize(mode="trilinear"), normalization (NormalizeIntensity(),
/// NormalizeIntensity(nonzero=True), ScaleIntensityRangePercentiles or ScaleIntensityRange to 0 and
/// 1 with clip), ResizeWithPadOrCrop. Padding is 0 and is added after normalization. Each frame is
/// normalized by itself; TimeSeriesMode::kMean takes the mean before normalization.
///
/// Throws the errors of read_volume_info() and count_volumes(). Also throws UserError (kBadData)
/// for corrupt or truncated compressed data, for voxels that are NaN or infinite, if normalization
/// finds only constant values or no foreground, if the spacing gives more than half a billion
/// voxels, if a spacing is set and the scan's axes are oblique, and for values beyond fp16 with
/// kHalf. Thread-safe; uses only the calling thread.
at::Tensor read_volume(const io::MediaRef& scan, const VolumeSettings& settings);

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
