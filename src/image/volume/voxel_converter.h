#pragma once

#include <cstdint>
#include <optional>

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

}  // namespace vlmtrain::image
