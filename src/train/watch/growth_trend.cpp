#include "train/watch/growth_trend.h"

#include <algorithm>
#include <array>

namespace vlmtrain::train {

namespace {

constexpr int64_t kWindowSteps = 10;  // steps
constexpr size_t kRecentWindows = 4;  // rises from stretch to stretch that are looked at
constexpr size_t kMaxWindows = 1000;
/// Of an earlier rise, what a leak is at least: its allocations are not the same in each stretch.
constexpr double kMinRiseRatio = 0.9;
/// The same of the later two quarters of a half against the earlier two. A logarithm's last quarter is 0.6 of the
/// first.
constexpr double kMinEvenness = 0.7;
constexpr size_t kMinQuarterWindows = 2;

double ratio(int64_t bytes, int64_t reference) {
  return static_cast<double>(bytes) / static_cast<double>(reference);
}

}  // namespace

std::optional<int64_t> GrowthTrend::add(int64_t bytes) {
  current_low_ = steps_ % kWindowSteps == 0 ? bytes : std::min(current_low_, bytes);
  if (++steps_ % kWindowSteps != 0) return std::nullopt;
  window_lows_.push_back(current_low_);
  if (window_lows_.size() > kMaxWindows) window_lows_.pop_front();
  if (window_lows_.size() < 2 * kRecentWindows + 1) return std::nullopt;
  auto rise_per_step = find_sustained_rise();
  if (!rise_per_step) rise_per_step = find_linear_rise();
  if (rise_per_step) window_lows_.clear();
  return rise_per_step;
}

std::optional<int64_t> GrowthTrend::find_sustained_rise() const {
  const size_t newest = window_lows_.size() - 1;
  for (size_t window = newest - kRecentWindows; window < newest; ++window) {
    if (compute_rise(window, window + 1) <= 0) return std::nullopt;
  }
  const int64_t recent_rise = compute_rise(newest - kRecentWindows, newest);
  if (recent_rise < min_bytes_) return std::nullopt;
  for (size_t end = std::max(kRecentWindows, newest / 2); end < newest - kRecentWindows + 1; ++end) {
    const int64_t earlier_rise = compute_rise(end - kRecentWindows, end);
    if (earlier_rise > 0 && ratio(recent_rise, earlier_rise) < kMinRiseRatio) return std::nullopt;
  }
  return recent_rise / (static_cast<int64_t>(kRecentWindows) * kWindowSteps);
}

std::optional<int64_t> GrowthTrend::find_linear_rise() const {
  constexpr size_t kQuarters = 4;
  const size_t newest = window_lows_.size() - 1;
  const size_t quarter = std::max(kMinQuarterWindows, (newest + 2 * kQuarters - 1) / (2 * kQuarters));
  if (kQuarters * quarter > newest) return std::nullopt;
  std::array<int64_t, kQuarters> rises{};
  for (size_t i = 0; i < kQuarters; ++i) {
    const size_t begin = newest - (kQuarters - i) * quarter;
    rises[i] = compute_rise(begin, begin + quarter);
    if (rises[i] <= 0) return std::nullopt;
  }
  const int64_t total_rise = compute_rise(newest - kQuarters * quarter, newest);
  const bool is_linear = ratio(std::min(rises[2], rises[3]), std::max(rises[0], rises[1])) >= kMinEvenness;
  if (!is_linear || total_rise < min_bytes_) return std::nullopt;
  return total_rise / (static_cast<int64_t>(kQuarters * quarter) * kWindowSteps);
}

}  // namespace vlmtrain::train
