#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "train/run/callbacks.h"
#include "vlmtrain/memory/trace.h"

namespace vlmtrain::train {

/// Whether a memory is nearly full, said once: again only after it was clearly less so.
class FillLevel {
 public:
  /// Of `total_bytes`, 0 where that is unknown. True when more than 95 % are used for the first time, or for the first
  /// time since less than 90 % were.
  bool crosses_threshold(int64_t used_bytes, int64_t total_bytes) {
    if (total_bytes <= 0) return false;
    const double share = static_cast<double>(used_bytes) / static_cast<double>(total_bytes);
    if (share < kResetShare) was_reported_ = false;
    if (share <= kFullShare || was_reported_) return false;
    was_reported_ = true;
    return true;
  }

 private:
  static constexpr double kFullShare = 0.95;
  static constexpr double kResetShare = 0.90;
  bool was_reported_ = false;
};

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

/// Warns where device or host memory in use between steps grows. Of the device's, the next steps are traced, and the
/// part of the model is named whose allocations stay. Warns too where hardly any of either is left.
class MemoryWatch {
 public:
  /// `host_limit_bytes`: what this process may use of the host's memory.
  MemoryWatch(at::Device device, int64_t host_limit_bytes, CallbackList& events);

  /// Before a step's work is begun; those before it may still be under way on the device.
  void before_step();
  /// When it has been reported.
  void observe(const StepReport& step);

 private:
  void warn_if_full(const report::StepMetrics& metrics);
  std::string find_growing_component() const;

  at::Device device_;
  int64_t host_limit_bytes_;
  CallbackList& events_;
  FillLevel device_level_;
  FillLevel host_level_;
  GrowthTrend device_trend_;
  GrowthTrend host_trend_;
  std::optional<int64_t> growth_;  // of the device's, while it is traced
  int64_t traced_steps_ = 0;
  std::optional<memory::AllocationTrace> trace_;
};

/// The most device memory that the steps of a run took.
class DevicePeaks {
 public:
  explicit DevicePeaks(at::Device device) : device_(device) {}

  /// Includes the peaks of a step or an evaluation.
  void update(const memory::DeviceMemory& memory);
  /// Includes what is free and what LibTorch has reserved at the end of a step.
  void update_free(int64_t free_bytes, int64_t reserved_bytes);

  /// Only the peaks are set.
  const memory::DeviceMemory& peak_memory() const { return memory_; }
  /// Returns the bytes in use at the end of a step, by all processes; 0 where they are not known.
  int64_t max_used_bytes() const;
  /// Returns the bytes in use outside of LibTorch's allocator.
  int64_t max_context_bytes() const { return max_context_bytes_; }

 private:
  at::Device device_;
  memory::DeviceMemory memory_;
  int64_t max_context_bytes_ = 0;
  std::optional<int64_t> min_free_bytes_;
};

}  // namespace vlmtrain::train
