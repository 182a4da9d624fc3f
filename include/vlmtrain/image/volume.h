#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

/// Numbers of the three axes of a volume: towards the subject's right, front and top (RAS+), as MONAI and nibabel have
/// them behind a reorientation.
template <class T>
using Axes = std::array<T, 3>;

/// A scan with a longer axis (of space or time), or more voxels a frame, is refused.
inline constexpr int64_t kMaxVoxelsPerAxis = 16'384;
inline constexpr int64_t kMaxVoxels = int64_t{1} << 32;

/// How the values of a volume are brought to a common scale, over the voxels of what is looked at.
enum class VolumeNormalization {
  kZScore,            ///< mean 0, deviation 1, over all voxels
  kZScoreForeground,  ///< the same over the voxels that are not 0; those that are stay 0
  kPercentile,        ///< two percentiles to 0 and 1, values beyond them too
  kWindow,            ///< two values (of CT: Hounsfield units) to 0 and 1, values beyond them too
  kNone,
};

/// What becomes of a file with a time axis, such as functional MRI.
enum class SeriesUse {
  kRefused,
  kMean,    ///< the mean of all its frames, one volume
  kFrames,  ///< each of some frames, spread evenly, is a volume
};

struct VolumeSettings {
  Axes<int64_t> size{96, 96, 96};       ///< voxels
  std::optional<Axes<double>> spacing;  ///< mm from voxel to voxel, what does not fit in `size` is cropped, what lacks
                                        ///< padded; nothing: the whole field of view is brought to `size`
  VolumeNormalization normalization = VolumeNormalization::kZScore;
  std::array<double, 2> percentiles{0.5, 99.5};
  std::array<double, 2> window{-160, 240};  ///< values that become 0 and 1
  SeriesUse series = SeriesUse::kRefused;
  int64_t max_frames = 8;             ///< of a series of frames that are looked at
  at::ScalarType dtype = at::kFloat;  ///< or kHalf
};

/// What the header of a file says.
struct VolumeInfo {
  std::array<int64_t, 3> size{};    ///< voxels, in the order of the file
  std::array<double, 3> spacing{};  ///< mm, the same: the lengths of the affine's columns. Units that a header names
                                    ///< are passed over, as by nibabel
  std::string orientation;          ///< where the file's axes point, as nibabel's aff2axcodes() says it: "LAS"
  int64_t frames = 1;               ///< of its time axis
};

/// Reads NIfTI-1 and NIfTI-2 (.nii, .nii.gz; by content, not by name), of which only the header is looked at: that it
/// is one, that its numbers can be, and that the file may well hold what it promises.
/// Source of the formats: nifti1.h (NIfTI-1.1) and nifti2.h of the NIfTI reference library; where axes point is as in
/// nibabel: sform, else qform, else spacing with x towards the left, and the nearest permutation with flips.
/// Throws UserError (kBadData): a pair of .hdr and .img, DICOM, an axis of none or more than kMaxVoxelsPerAxis voxels,
/// complex numbers and colours, an affine that is none, a file that is cut off.
VolumeInfo read_volume_info(const io::MediaRef& medium);

/// How many volumes become of it. Throws UserError (kBadData) for a series where none is taken.
int64_t count_volumes(const VolumeInfo& info, const VolumeSettings& settings);

/// Most of the host's memory that read_volume() takes beside what it gives. The scan itself is never in memory: with
/// kNone and kWindow it is the result once more, else the whole field of view at the result's spacing.
int64_t estimate_reading_bytes(const VolumeInfo& info, const VolumeSettings& settings);

/// Reads it, turns it to RAS+, resamples (trilinear), normalises and crops or pads it: `settings.dtype`
/// [count_volumes(), 1, right, front, top]. So does MONAI with LoadImage, EnsureChannelFirst, Orientation("RAS"),
/// Spacing(mode="bilinear", padding_mode="border") or Resize(mode="trilinear"), the normalisation
/// (NormalizeIntensity(), NormalizeIntensity(nonzero=True), ScaleIntensityRangePercentiles or ScaleIntensityRange to 0
/// and 1 with clip), ResizeWithPadOrCrop: what is normalised is all that was resampled, and padding is 0 thereafter.
/// Frames are normalised each by itself; a mean is taken before.
///
/// Throws UserError (kBadData): what read_volume_info() refuses, compressed data that is damaged or ends too soon,
/// voxels that are NaN or infinite (with their number), values that do not differ or have no foreground where they are
/// to be normalised, a spacing that makes more than half a billion voxels, axes that are not at right angles where a
/// spacing is wanted, values beyond fp16 with kHalf. Thread-safe, and runs on the caller's thread alone.
at::Tensor read_volume(const io::MediaRef& medium, const VolumeSettings& settings);

}  // namespace vlmtrain::image
