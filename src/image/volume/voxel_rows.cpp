#include "image/volume/voxel_rows.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "image/vectorised.h"

namespace vlmtrain::image {
namespace {

template <size_t kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using Type = uint8_t;
  static Type swapped(Type value) { return value; }
};
template <>
struct UnsignedOf<2> {
  using Type = uint16_t;
  static Type swapped(Type value) { return __builtin_bswap16(value); }
};
template <>
struct UnsignedOf<4> {
  using Type = uint32_t;
  static Type swapped(Type value) { return __builtin_bswap32(value); }
};
template <>
struct UnsignedOf<8> {
  using Type = uint64_t;
  static Type swapped(Type value) { return __builtin_bswap64(value); }
};

template <class T, bool kSwapped>
T voxel_at(const uint8_t* stored, int64_t index) {
  using Bits = UnsignedOf<sizeof(T)>;
  typename Bits::Type bits;
  std::memcpy(&bits, stored + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  if constexpr (kSwapped) bits = Bits::swapped(bits);
  return std::bit_cast<T>(bits);
}

template <class T, bool kSwapped, bool kScaled>
void convert_voxels(const uint8_t* stored, int64_t count, VoxelScaling scaling, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = voxel_at<T, kSwapped>(stored, i);
    if constexpr (kScaled) {
      values[i] = static_cast<float>(static_cast<double>(value) * scaling.slope + scaling.intercept);
    } else {
      values[i] = static_cast<float>(value);
    }
  }
}

using ConvertVoxels = void (*)(const uint8_t*, int64_t, VoxelScaling, float*);

template <class T>
ConvertVoxels converter_of(bool swapped, bool scaled) {
  if (swapped) return scaled ? convert_voxels<T, true, true> : convert_voxels<T, true, false>;
  return scaled ? convert_voxels<T, false, true> : convert_voxels<T, false, false>;
}

/// Calls `use` with a value of the C++ type.
template <class Use>
auto with_type(VoxelType type, const Use& use) {
  switch (type) {
    case VoxelType::kUint8:
      return use(uint8_t{});
    case VoxelType::kInt8:
      return use(int8_t{});
    case VoxelType::kUint16:
      return use(uint16_t{});
    case VoxelType::kInt16:
      return use(int16_t{});
    case VoxelType::kUint32:
      return use(uint32_t{});
    case VoxelType::kInt32:
      return use(int32_t{});
    case VoxelType::kUint64:
      return use(uint64_t{});
    case VoxelType::kInt64:
      return use(int64_t{});
    case VoxelType::kFloat32:
      return use(float{});
    case VoxelType::kFloat64:
      break;
  }
  return use(double{});
}

template <class T>
bool may_overflow(VoxelScaling scaling) {
  if (std::is_floating_point_v<T>) return true;
  constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max()) + 1;
  const double most = kMost * std::abs(scaling.slope) + std::abs(scaling.intercept);
  return !(most < static_cast<double>(std::numeric_limits<float>::max()));
}

}  // namespace

int64_t bytes_of(VoxelType type) {
  return with_type(type, [](auto value) { return static_cast<int64_t>(sizeof(value)); });
}

VoxelRows::VoxelRows(VoxelType type, bool swapped, std::optional<VoxelScaling> scaling)
    : scaling_(scaling.value_or(VoxelScaling{1, 0})),
      convert_(
          with_type(type, [&](auto value) { return converter_of<decltype(value)>(swapped, scaling.has_value()); })),
      may_not_be_finite_(with_type(type, [&](auto value) { return may_overflow<decltype(value)>(scaling_); })) {}

VLMTRAIN_VECTORISED int64_t count_not_finite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7F800000;
  int32_t result = 0;
  for (int64_t i = 0; i < count; ++i) result += (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent ? 1 : 0;
  return result;
}

}  // namespace vlmtrain::image
