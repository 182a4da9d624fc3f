#include "image/volume/intensity.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// Count, mean and squared deviations from it, joined piece by piece (Chan): no cancellation far from zero.
class Moments {
 public:
  template <class Counts>
  void add(std::span<const float> values, const Counts& counts) {
    int64_t count = 0;
    double sum = 0;
    for (const float value : values) {
      if (!counts(value)) continue;
      ++count;
      sum += value;
    }
    if (count == 0) return;
    const double mean = sum / static_cast<double>(count);
    double squares = 0;
    for (const float value : values) {
      if (counts(value)) squares += (value - mean) * (value - mean);
    }
    const auto before = static_cast<double>(count_);
    const auto added = static_cast<double>(count);
    const double distance = mean - mean_;
    squares_ += squares + distance * distance * before * added / (before + added);
    mean_ += distance * added / (before + added);
    count_ += count;
  }

  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  double deviation() const { return std::sqrt(squares_ / static_cast<double>(count_)); }

 private:
  int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

UserError nothing_differs(const std::string& name, std::string_view what, double value) {
  return data_error(
      "{}: {} of the scan have the value {}, so that there is nothing to normalise; check the file, or leave it out",
      name, what, value);
}

template <class Counts>
IntensityChange z_score(const std::vector<float>& values, const Counts& counts, std::string_view what,
                        const std::string& name) {
  constexpr size_t kPiece = 4096;
  Moments moments;
  for (size_t begin = 0; begin < values.size(); begin += kPiece) {
    moments.add(std::span(values).subspan(begin, std::min(kPiece, values.size() - begin)), counts);
  }
  if (moments.count() == 0) {
    throw data_error(
        "{}: all voxels of the scan are 0: there is no foreground to normalise; check the file, or leave "
        "it out",
        name);
  }
  const auto deviation = static_cast<float>(moments.deviation());
  // The mean of equal values may be a rounding beside them.
  const auto some = std::ranges::find_if(values, counts);
  const bool differ = std::ranges::any_of(some, values.end(), [&](float v) { return counts(v) && v != *some; });
  if (!differ || !(deviation > 0)) throw nothing_differs(name, what, *some);
  return {.subtract = static_cast<float>(moments.mean()), .divide = deviation};
}

}  // namespace

std::array<double, 2> percentiles_of(std::vector<float> values, const std::array<double, 2>& percentiles) {
  std::array<double, 2> result{};
  auto begin = values.begin();
  for (int i = 0; i < 2; ++i) {
    const double rank = percentiles[i] / 100 * static_cast<double>(values.size() - 1);
    const auto below = values.begin() + static_cast<std::ptrdiff_t>(rank);
    if (below < begin) begin = values.begin();
    std::nth_element(begin, below, values.end());
    const double low = *below;
    const double high = below + 1 == values.end() ? low : *std::min_element(below + 1, values.end());
    result[i] = low + (high - low) * (rank - std::floor(rank));
    begin = below;
  }
  return result;
}

IntensityChange intensity_change(const std::vector<float>& values, const VolumeSettings& settings,
                                 const std::string& name) {
  std::array<double, 2> range = settings.window;
  switch (settings.normalization) {
    case VolumeNormalization::kNone:
      return {};
    case VolumeNormalization::kZScore:
      return z_score(
          values, [](float) { return true; }, "all voxels", name);
    case VolumeNormalization::kZScoreForeground: {
      IntensityChange change = z_score(
          values, [](float value) { return value != 0; }, "all voxels that are not 0", name);
      change.keeps_zero = true;
      return change;
    }
    case VolumeNormalization::kPercentile:
      range = percentiles_of(values, settings.percentiles);
      if (!(range[0] < range[1])) {
        throw nothing_differs(
            name, fmt::format("all voxels from percentile {} to {}", settings.percentiles[0], settings.percentiles[1]),
            range[0]);
      }
      break;
    case VolumeNormalization::kWindow:
      break;
  }
  return {.subtract = static_cast<float>(range[0]), .divide = static_cast<float>(range[1] - range[0]), .clips = true};
}

}  // namespace vlmtrain::image
