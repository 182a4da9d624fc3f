#include "image/volume/intensity.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
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
