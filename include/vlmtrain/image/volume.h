#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// Values of the three axes of a volume in RAS+ orientation (towards right, anterior, superior), as
/// in MONAI and nibabel after a reorientation.
template <class T>
using Axes = std::array<T, 3>;

/// The maximum length of an axis of space or time. A longer one is taken for a corrupt header.
inline constexpr int64_t kMaxVoxelsPerAxis = 16'384;
/// The maximum number of voxels per frame, 16 GiB in float32.
inline constexpr int64_t kMaxVoxels = int64_t{1} << 32;

/// The intensity normalization of a volume, over all voxels that were resampled.
enum class VolumeNormalization {
  kZScore,            ///< mean 0, standard deviation 1
  kZScoreForeground,  ///< the same over nonzero voxels; zeros stay 0
  kPercentile,        ///< two percentiles become 0 and 1; clipped
  kWindow,            ///< two values (for CT: Hounsfield units) become 0 and 1; clipped
  kNone,
};

/// The treatment of files with a time axis, such as functional MRI.
enum class SeriesUse {
  kRefused,
  kMean,    ///< one volume, the mean of all frames
  kFrames,  ///< one volume for each of some evenly spaced frames
};

/// The settings of read_volume().
struct VolumeSettings {
  Axes<int64_t> size{96, 96, 96};  ///< voxels of the result
  /// mm per voxel, with cropping or padding to `size`; nothing: the whole field of view is resized
  /// to `size`.
  std::optional<Axes<double>> spacing;
  VolumeNormalization normalization = VolumeNormalization::kZScore;
  std::array<double, 2> percentiles{0.5, 99.5};
  std::array<double, 2> window{-160, 240};  ///< the values that become 0 and 1
  SeriesUse series = SeriesUse::kRefused;
  int64_t max_frames = 8;             ///< maximum number of volumes with SeriesUse::kFrames
  at::ScalarType dtype = at::kFloat;  ///< kFloat or kHalf
};

/// The properties of a scan, from its header.
struct VolumeInfo {
  std::array<int64_t, 3> size{};  ///< voxels, in file order
  std::array<double, 3>
      spacing{};            ///< mm in file order: column lengths of the affine. As in nibabel, units are ignored
  std::string orientation;  ///< directions of the file's axes as in nibabel's aff2axcodes(), such as "LAS"
  int64_t frames = 1;       ///< length of the time axis
};

/// Reads and validates the header of a NIfTI-1 or NIfTI-2 file (.nii, .nii.gz; detected by
/// content), including whether the file can hold the promised voxels. Source of the formats:
/// nifti1.h (NIfTI-1.1) and nifti2.h of the NIfTI reference library. Axis directions are as in
/// nibabel: sform, else qform, else spacing with x towards the left; the nearest permutation with
/// flips. Throws UserError (kBadData) for .hdr/.img pairs, DICOM, axes without or with too many
/// voxels, complex and color types, singular affines, truncated files.
VolumeInfo read_volume_info(const io::MediaRef& medium);

/// Returns the number of volumes that read_volume() gives. Throws UserError (kBadData) for a series
/// with SeriesUse::kRefused.
int64_t count_volumes(const VolumeInfo& info, const VolumeSettings& settings);

/// Returns the peak host memory of read_volume() in addition to its result. The scan itself is
/// never held in memory: with kNone and kWindow this is the result once more, else the whole field
/// of view at the result's spacing.
int64_t estimate_reading_bytes(const VolumeInfo& info, const VolumeSettings& settings);

/// Reads a scan, reorients it to RAS+, resamples (trilinear), normalizes, and crops or pads it.
/// Returns `settings.dtype` [count_volumes(), 1, right, anterior, superior].
///
/// Equals MONAI's LoadImage, EnsureChannelFirst, Orientation("RAS"), Spacing(mode="bilinear",
/// padding_mode="border") or Resize(mode="trilinear"), normalization (NormalizeIntensity(),
/// NormalizeIntensity(nonzero=True), ScaleIntensityRangePercentiles or ScaleIntensityRange to 0 and
/// 1 with clip), ResizeWithPadOrCrop. Padding is 0 and is not part of the normalization. Frames are
/// normalized one by one; a mean is taken before.
///
/// Throws UserError (kBadData) as read_volume_info() does, and for corrupt or truncated compressed
/// data, voxels that are NaN or infinite (with their number), constant values or no foreground if
/// they are to be normalized, a spacing that gives more than half a billion voxels, oblique axes
/// with a spacing, values beyond fp16 with kHalf. Thread-safe; uses only the calling thread.
at::Tensor read_volume(const io::MediaRef& medium, const VolumeSettings& settings);

}  // namespace vlmtrain::image
