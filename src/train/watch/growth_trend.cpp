#include "train/watch/growth_trend.h"

#include <algorithm>
#include <array>

namespace vlmtrain::train {

namespace {

constexpr int64_t kStretch = 10;  // steps
constexpr size_t kLast = 4;       // rises from stretch to stretch that are looked at
constexpr size_t kMostStretches = 1000;
/// Of an earlier rise, what a leak is at least: its allocations are not the same in each stretch.
constexpr double kAsHigh = 0.9;
/// The same of the later two quarters of a half against the earlier two. A logarithm's last quarter is 0.6 of the
/// first.
constexpr double kAsEven = 0.7;
constexpr size_t kLeastQuarter = 2;

double share(int64_t bytes, int64_t of) {
  return static_cast<double>(bytes) / static_cast<double>(of);
}

}  // namespace

std::optional<int64_t> GrowthTrend::add(int64_t bytes) {
  lowest_ = steps_ % kStretch == 0 ? bytes : std::min(lowest_, bytes);
  if (++steps_ % kStretch != 0) return std::nullopt;
  stretch_lows_.push_back(lowest_);
  if (stretch_lows_.size() > kMostStretches) stretch_lows_.pop_front();
  if (stretch_lows_.size() < 2 * kLast + 1) return std::nullopt;
  auto per_step = rise_as_high_as_ever();
  if (!per_step) per_step = even_rise();
  if (per_step) stretch_lows_.clear();
  return per_step;
}

std::optional<int64_t> GrowthTrend::rise_as_high_as_ever() const {
  const size_t newest = stretch_lows_.size() - 1;
  for (size_t stretch = newest - kLast; stretch < newest; ++stretch) {
    if (rise(stretch, stretch + 1) <= 0) return std::nullopt;
  }
  const int64_t now = rise(newest - kLast, newest);
  if (now < least_bytes_) return std::nullopt;
  for (size_t end = std::max(kLast, newest / 2); end < newest - kLast + 1; ++end) {
    const int64_t before = rise(end - kLast, end);
    if (before > 0 && share(now, before) < kAsHigh) return std::nullopt;
  }
  return now / (static_cast<int64_t>(kLast) * kStretch);
}

std::optional<int64_t> GrowthTrend::even_rise() const {
  constexpr size_t kQuarters = 4;
  const size_t newest = stretch_lows_.size() - 1;
  const size_t quarter = std::max(kLeastQuarter, (newest + 2 * kQuarters - 1) / (2 * kQuarters));
  if (kQuarters * quarter > newest) return std::nullopt;
  std::array<int64_t, kQuarters> rises{};
  for (size_t i = 0; i < kQuarters; ++i) {
    const size_t from = newest - (kQuarters - i) * quarter;
    rises[i] = rise(from, from + quarter);
    if (rises[i] <= 0) return std::nullopt;
  }
  const int64_t all = rise(newest - kQuarters * quarter, newest);
  const bool even = share(std::min(rises[2], rises[3]), std::max(rises[0], rises[1])) >= kAsEven;
  if (!even || all < least_bytes_) return std::nullopt;
  return all / (static_cast<int64_t>(kQuarters * quarter) * kStretch);
}

}  // namespace vlmtrain::train
