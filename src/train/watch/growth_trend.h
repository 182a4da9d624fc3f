#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace vlmtrain::train {

/// Bytes that only ever go up. What is in use between steps is level, with passing peaks; a leak shows as a rise of the
/// lowest value from each stretch of steps to the next. What rises ever less is a cache that fills, such as oneDNN's of
/// kernels for the shapes that it has seen, which may go on for hundreds of steps. So a rise is a leak only where it is
/// not less than what was seen before: over the last stretches against those of the later half of all, or over that
/// half by itself.
class GrowthTrend {
 public:
  /// A rise of less than `min_bytes` over the stretches that show it is none.
  explicit GrowthTrend(int64_t min_bytes) : min_bytes_(min_bytes) {}

  /// Takes in a step; gives the rise per step where there is one. After that it begins anew.
  std::optional<int64_t> add(int64_t bytes);

 private:
  /// From the low of one stretch to that of a later one.
  int64_t compute_rise(size_t first, size_t last) const { return window_lows_[last] - window_lows_[first]; }
  /// Of the last stretches, per step.
  std::optional<int64_t> find_sustained_rise() const;
  /// Of the later half, per step.
  std::optional<int64_t> find_linear_rise() const;

  int64_t min_bytes_;
  int64_t steps_ = 0;
  int64_t current_low_ = 0;  // of the stretch under way
  std::deque<int64_t> window_lows_;
};

}  // namespace vlmtrain::train
