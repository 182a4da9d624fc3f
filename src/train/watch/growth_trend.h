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
  /// A rise of less than `least_bytes` over the stretches that show it is none.
  explicit GrowthTrend(int64_t least_bytes) : least_bytes_(least_bytes) {}

  /// Takes in a step; gives the rise per step where there is one. After that it begins anew.
  std::optional<int64_t> add(int64_t bytes);

 private:
  /// From the low of one stretch to that of a later one.
  int64_t rise(size_t from, size_t to) const { return stretch_lows_[to] - stretch_lows_[from]; }
  /// Of the last stretches, per step.
  std::optional<int64_t> rise_as_high_as_ever() const;
  /// Of the later half, per step.
  std::optional<int64_t> even_rise() const;

  int64_t least_bytes_;
  int64_t steps_ = 0;
  int64_t lowest_ = 0;  // of the stretch under way
  std::deque<int64_t> stretch_lows_;
};

}  // namespace vlmtrain::train
