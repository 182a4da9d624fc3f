#include "image/volume/voxel_converter.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "image/pixel_layout.h"

namespace vlmtrain::image {

namespace {

/// The unsigned integer of kNumBytes bytes.
template <size_t kNumBytes>
struct UnsignedInt;
template <>
struct UnsignedInt<1> {
  using Type = uint8_t;
  static Type swap_bytes(Type value) { return value; }
};
template <>
struct UnsignedInt<2> {
  using Type = uint16_t;
  static Type swap_bytes(Type value) { return __builtin_bswap16(value); }
};
template <>
struct UnsignedInt<4> {
  using Type = uint32_t;
  static Type swap_bytes(Type value) { return __builtin_bswap32(value); }
};
template <>
struct UnsignedInt<8> {
  using Type = uint64_t;
  static Type swap_bytes(Type value) { return __builtin_bswap64(value); }
};

template <class T, bool kIsByteSwapped>
T read_voxel(const uint8_t* stored_voxels, int64_t index) {
  using Bits = UnsignedInt<sizeof(T)>;
  typename Bits::Type bits;
  std::memcpy(&bits, stored_voxels + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  if constexpr (kIsByteSwapped) bits = Bits::swap_bytes(bits);
  return std::bit_cast<T>(bits);
}

/// Converts `count` voxels of type T to `values`. Without kHasScaling, `scaling` is ignored.
template <class T, bool kIsByteSwapped, bool kHasScaling>
void convert_voxels(const uint8_t* stored_voxels, int64_t count, VoxelScaling scaling, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = read_voxel<T, kIsByteSwapped>(stored_voxels, i);
    if constexpr (kHasScaling) {
      values[i] = static_cast<float>(static_cast<double>(value) * scaling.slope + scaling.intercept);
    } else {
      values[i] = static_cast<float>(value);
    }
  }
}

template <class T>
ConvertVoxelsFunction select_convert_function(bool is_byte_swapped, bool has_scaling) {
  if (is_byte_swapped) return has_scaling ? convert_voxels<T, true, true> : convert_voxels<T, true, false>;
  return has_scaling ? convert_voxels<T, false, true> : convert_voxels<T, false, false>;
}

/// Calls `visit` with a value of the C++ type of `type`.
template <class Visit>
auto dispatch_voxel_dtype(VoxelDtype type, const Visit& visit) {
  switch (type) {
    case VoxelDtype::kUint8:
      return visit(uint8_t{});
    case VoxelDtype::kInt8:
      return visit(int8_t{});
    case VoxelDtype::kUint16:
      return visit(uint16_t{});
    case VoxelDtype::kInt16:
      return visit(int16_t{});
    case VoxelDtype::kUint32:
      return visit(uint32_t{});
    case VoxelDtype::kInt32:
      return visit(int32_t{});
    case VoxelDtype::kUint64:
      return visit(uint64_t{});
    case VoxelDtype::kInt64:
      return visit(int64_t{});
    case VoxelDtype::kFloat32:
      return visit(float{});
    case VoxelDtype::kFloat64:
      break;
  }
  return visit(double{});
}

/// Returns whether scaled values of type T may be NaN or beyond fp32.
template <class T>
bool may_overflow_float32(VoxelScaling scaling) {
  if (std::is_floating_point_v<T>) return true;
  constexpr auto kMaxStoredMagnitude = static_cast<double>(std::numeric_limits<T>::max()) + 1;
  const double max_magnitude = kMaxStoredMagnitude * std::abs(scaling.slope) + std::abs(scaling.intercept);
  return !(max_magnitude < static_cast<double>(std::numeric_limits<float>::max()));
}

}  // namespace

int64_t get_voxel_bytes(VoxelDtype type) {
  return dispatch_voxel_dtype(type, [](auto value) { return static_cast<int64_t>(sizeof(value)); });
}

VoxelConverter::VoxelConverter(VoxelDtype type, bool is_byte_swapped, std::optional<VoxelScaling> scaling)
    : scaling_(scaling.value_or(VoxelScaling{1, 0})),
      convert_function_(dispatch_voxel_dtype(
          type,
          [&](auto value) { return select_convert_function<decltype(value)>(is_byte_swapped, scaling.has_value()); })),
      may_be_nonfinite_(
          dispatch_voxel_dtype(type, [&](auto value) { return may_overflow_float32<decltype(value)>(scaling_); })) {}

VLMTRAIN_VECTORIZED int64_t count_nonfinite_values(const float* values, int64_t count) {
  constexpr uint32_t kExponentMask = 0x7F800000;  // all exponent bits are set in NaN and infinity
  int32_t result = 0;
  for (int64_t i = 0; i < count; ++i)
    result += (std::bit_cast<uint32_t>(values[i]) & kExponentMask) == kExponentMask ? 1 : 0;
  return result;
}

}  // namespace vlmtrain::image
