#include "train/callbacks/growth_trend.h"

#include <algorithm>
#include <functional>

namespace vlmtrain::train {

namespace {

constexpr int64_t kStretch = 10;  // steps
constexpr size_t kStretches = 5;

}  // namespace

std::optional<int64_t> GrowthTrend::add(int64_t bytes) {
  lowest_ = steps_ % kStretch == 0 ? bytes : std::min(lowest_, bytes);
  if (++steps_ % kStretch != 0) return std::nullopt;
  stretch_lows_.push_back(lowest_);
  if (stretch_lows_.size() > kStretches) stretch_lows_.pop_front();
  if (stretch_lows_.size() < kStretches) return std::nullopt;
  const bool rises =
      std::adjacent_find(stretch_lows_.begin(), stretch_lows_.end(), std::greater_equal<>()) == stretch_lows_.end();
  const int64_t rise = stretch_lows_.back() - stretch_lows_.front();
  const int64_t first_rise = stretch_lows_[1] - stretch_lows_[0];
  const int64_t last_rise = stretch_lows_[kStretches - 1] - stretch_lows_[kStretches - 2];
  if (!rises || 2 * last_rise < first_rise || rise < least_bytes_) return std::nullopt;
  stretch_lows_.clear();
  return rise / (static_cast<int64_t>(kStretches - 1) * kStretch);
}

}  // namespace vlmtrain::train
