#include "image/volume/voxel_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "image/pixel_layout.h"
#include "vlmtrain/base/error.h"

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

namespace {

/// The count, mean and standard deviation of values, merged chunk by chunk (Chan et al., 1979).
/// This avoids cancellation for values far from zero.
class RunningStatistics {
 public:
  /// Adds a chunk, without the values for which `is_counted` returns false.
  template <class IsCounted>
  void add(std::span<const float> values, const IsCounted& is_counted) {
    int64_t count = 0;
    double sum = 0;
    for (const float value : values) {
      if (!is_counted(value)) continue;
      ++count;
      sum += value;
    }
    if (count == 0) return;
    const double mean = sum / static_cast<double>(count);
    double sum_of_squared_deviations = 0;
    for (const float value : values) {
      if (is_counted(value)) sum_of_squared_deviations += (value - mean) * (value - mean);
    }
    const auto previous_count = static_cast<double>(count_);
    const auto added_count = static_cast<double>(count);
    const double delta = mean - mean_;
    sum_of_squared_deviations_ +=
        sum_of_squared_deviations + delta * delta * previous_count * added_count / (previous_count + added_count);
    mean_ += delta * added_count / (previous_count + added_count);
    count_ += count;
  }

  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  /// Returns the population standard deviation. REQUIRES: count() > 0.
  double standard_deviation() const { return std::sqrt(sum_of_squared_deviations_ / static_cast<double>(count_)); }

 private:
  int64_t count_ = 0;
  double mean_ = 0;
  double sum_of_squared_deviations_ = 0;
};

/// `voxels_phrase`: a noun phrase for the voxels that are equal, such as "all voxels".
UserError make_constant_values_error(const std::string& name, std::string_view voxels_phrase, double value) {
  return data_error("{}: cannot normalize the scan: {} have the value {}; check the file, or drop the sample", name,
                    voxels_phrase, value);
}

/// Returns the transform to mean 0 and standard deviation 1 of the values for which `is_counted`
/// returns true. `voxels_phrase`: as in make_constant_values_error().
template <class IsCounted>
IntensityTransform make_z_score_transform(const std::vector<float>& values, const IsCounted& is_counted,
                                          std::string_view voxels_phrase, const std::string& name) {
  constexpr size_t kValuesPerChunk = 4096;  // 16 KiB of floats remain in the L1 cache for the second pass
  RunningStatistics statistics;
  for (size_t begin = 0; begin < values.size(); begin += kValuesPerChunk) {
    statistics.add(std::span(values).subspan(begin, std::min(kValuesPerChunk, values.size() - begin)), is_counted);
  }
  if (statistics.count() == 0) {
    throw data_error(
        "{}: cannot normalize the scan: all voxels are 0, so it has no foreground; check the file, or drop the sample",
        name);
  }
  const auto standard_deviation = static_cast<float>(statistics.standard_deviation());
  // The deviation of equal values may not be exactly 0, since their mean is rounded. Hence the
  // comparison of the values themselves.
  const auto first_counted_value = std::ranges::find_if(values, is_counted);
  const bool has_different_values = std::ranges::any_of(
      first_counted_value, values.end(), [&](float v) { return is_counted(v) && v != *first_counted_value; });
  if (!has_different_values || !(standard_deviation > 0))
    throw make_constant_values_error(name, voxels_phrase, *first_counted_value);
  return {.offset = static_cast<float>(statistics.mean()), .divisor = standard_deviation};
}

}  // namespace

std::array<double, 2> compute_percentiles(std::vector<float> values, const std::array<double, 2>& percentiles) {
  std::array<double, 2> result{};
  auto begin = values.begin();
  for (int i = 0; i < 2; ++i) {
    const double rank = percentiles[i] / 100 * static_cast<double>(values.size() - 1);
    const auto lower = values.begin() + static_cast<std::ptrdiff_t>(rank);
    if (lower < begin) begin = values.begin();  // the percentiles descend
    std::nth_element(begin, lower, values.end());
    const double lower_value = *lower;
    const double upper_value = lower + 1 == values.end() ? lower_value : *std::min_element(lower + 1, values.end());
    result[i] = lower_value + (upper_value - lower_value) * (rank - std::floor(rank));
    begin = lower;
  }
  return result;
}

IntensityTransform make_intensity_transform(const std::vector<float>& values, const VolumeSettings& settings,
                                            const std::string& name) {
  std::array<double, 2> bounds = settings.window;
  switch (settings.normalization) {
    case VolumeNormalization::kNone:
      return {};
    case VolumeNormalization::kZScore:
      return make_z_score_transform(
          values, [](float) { return true; }, "all voxels", name);
    case VolumeNormalization::kZScoreForeground: {
      IntensityTransform transform = make_z_score_transform(
          values, [](float value) { return value != 0; }, "all voxels that are not 0", name);
      transform.preserves_zeros = true;
      return transform;
    }
    case VolumeNormalization::kPercentile:
      bounds = compute_percentiles(values, settings.percentiles);
      if (!(bounds[0] < bounds[1])) {
        throw make_constant_values_error(
            name, fmt::format("all voxels from percentile {} to {}", settings.percentiles[0], settings.percentiles[1]),
            bounds[0]);
      }
      break;
    case VolumeNormalization::kWindow:
      break;
  }
  return {.offset = static_cast<float>(bounds[0]),
          .divisor = static_cast<float>(bounds[1] - bounds[0]),
          .clips_to_unit_range = true};
}

}  // namespace vlmtrain::image
