#pragma once

#include <cstdint>
#include <optional>

namespace vlmtrain::image {

enum class VoxelType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64, kFloat32, kFloat64 };

int64_t get_voxel_bytes(VoxelType type);

/// The linear scaling of stored values: slope · value + intercept.
struct VoxelScaling {
  double slope;
  double intercept;
};

/// A converter of stored voxels to fp32, as in nibabel's dataobj followed by a cast: scaled in fp64
/// if there is a scaling, else rounded once.
class VoxelConverter {
 public:
  VoxelConverter(VoxelType type, bool is_swapped, std::optional<VoxelScaling> scaling);

  void convert(const uint8_t* stored_voxels, int64_t count, float* values) const {
    convert_(stored_voxels, count, scaling_, values);
  }

  /// Returns false if type and scaling exclude NaN and values beyond fp32.
  bool may_be_nonfinite() const { return may_be_nonfinite_; }

 private:
  using Convert = void (*)(const uint8_t* stored_voxels, int64_t count, VoxelScaling scaling, float* values);

  VoxelScaling scaling_;
  Convert convert_;
  bool may_be_nonfinite_;
};

/// Counts the values that are NaN or infinite.
int64_t count_nonfinite(const float* values, int64_t count);

}  // namespace vlmtrain::image
