#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// The data types of stored voxels that are supported.
enum class VoxelDtype { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64, kFloat32, kFloat64 };

/// Returns the size of a stored voxel.
int64_t get_voxel_bytes(VoxelDtype type);

/// The linear scaling of stored values: slope · value + intercept.
struct VoxelScaling {
  double slope;
  double intercept;
};

/// A function that converts `count` stored voxels of one data type and byte order to fp32.
using ConvertVoxelsFunction = void (*)(const uint8_t* stored_voxels, int64_t count, VoxelScaling scaling,
                                       float* values);

/// A converter of stored voxels to fp32. Equals nibabel's dataobj followed by a cast to fp32: with
/// a scaling, values are scaled in fp64 and then rounded; otherwise they are rounded once.
class VoxelConverter {
 public:
  /// `is_byte_swapped`: the byte order of stored voxels differs from this machine's.
  VoxelConverter(VoxelDtype type, bool is_byte_swapped, std::optional<VoxelScaling> scaling);

  /// Converts `count` contiguous voxels, of any alignment.
  void convert(const uint8_t* stored_voxels, int64_t count, float* values) const {
    convert_function_(stored_voxels, count, scaling_, values);
  }

  /// Returns whether converted values may be NaN or infinite. False for integers, unless the
  /// scaling may exceed fp32.
  bool may_be_nonfinite() const { return may_be_nonfinite_; }

 private:
  VoxelScaling scaling_;
  ConvertVoxelsFunction convert_function_;
  bool may_be_nonfinite_;
};

/// Counts the values that are NaN or infinite.
int64_t count_nonfinite_values(const float* values, int64_t count);

/// A transform of intensities: (value - offset) / divisor, in fp32. The default is the identity.
struct IntensityTransform {
  float offset = 0;
  float divisor = 1;
  bool clips_to_unit_range = false;  ///< results are clipped to 0 to 1
  bool preserves_zeros = false;      ///< zeros stay 0

  float apply(float value) const {
    if (preserves_zeros && value == 0) return 0;
    const float transformed = (value - offset) / divisor;
    if (!clips_to_unit_range) return transformed;
    return transformed < 0 ? 0 : (transformed > 1 ? 1 : transformed);
  }
};

/// Returns the transform that normalizes a volume of these values as the settings ask. `values`: of
/// all resampled voxels, not empty. Throws UserError (kBadData) if the normalization needs
/// different values or a foreground and there are none. `name` identifies the scan in messages.
IntensityTransform make_intensity_transform(const std::vector<float>& values, const VolumeSettings& settings,
                                            const std::string& name);

/// Returns two percentiles, 0 to 100, of the values: linear between the two nearest ranks, as in
/// numpy. REQUIRES: `values` is not empty.
std::array<double, 2> compute_percentiles(std::vector<float> values, const std::array<double, 2>& percentiles);

}  // namespace vlmtrain::image
