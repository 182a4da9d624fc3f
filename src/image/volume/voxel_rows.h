#pragma once

#include <cstdint>
#include <optional>

namespace vlmtrain::image {

enum class VoxelType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64, kFloat32, kFloat64 };

int64_t bytes_of(VoxelType type);

/// What a stored value means: slope · value + intercept.
struct VoxelScaling {
  double slope;
  double intercept;
};

/// How stored voxels become fp32, as nibabel's dataobj followed by a cast does it: scaled in fp64 where there is a
/// scaling, else rounded once.
class VoxelRows {
 public:
  VoxelRows(VoxelType type, bool swapped, std::optional<VoxelScaling> scaling);

  void convert(const uint8_t* stored, int64_t count, float* values) const { convert_(stored, count, scaling_, values); }

  /// False where the type and its scaling let no voxel be NaN or beyond fp32.
  bool may_not_be_finite() const { return may_not_be_finite_; }

 private:
  using Convert = void (*)(const uint8_t* stored, int64_t count, VoxelScaling scaling, float* values);

  VoxelScaling scaling_;
  Convert convert_;
  bool may_not_be_finite_;
};

/// How many of the values are NaN or infinite.
int64_t count_not_finite(const float* values, int64_t count);

}  // namespace vlmtrain::image
