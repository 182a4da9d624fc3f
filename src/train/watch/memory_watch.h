#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "train/run/callbacks.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {

/// Hysteresis for the warning that a memory is nearly full.
class FillLevel {
 public:
  /// Returns true when more than 95 % of `total_bytes` are used for the first time, or for the
  /// first time since usage was below 90 %. `total_bytes` is 0 if it is unknown.
  bool crosses_threshold(int64_t used_bytes, int64_t total_bytes) {
    if (total_bytes <= 0) return false;
    const double share = static_cast<double>(used_bytes) / static_cast<double>(total_bytes);
    if (share < kResetShare) was_reported_ = false;
    if (share <= kFullShare || was_reported_) return false;
    was_reported_ = true;
    return true;
  }

 private:
  /// Share of a memory at which other processes or fragments may make the next step fail.
  static constexpr double kFullShare = 0.95;
  /// Below kFullShare, so that usage around it does not repeat the warning.
  static constexpr double kResetShare = 0.90;
  bool was_reported_ = false;
};

/// Detector of memory that only grows. Memory between steps is level, with short peaks; a leak
/// raises the lowest value of each window of steps above that of the window before. A cache that
/// fills, such as oneDNN's of kernels for the shapes it has seen, grows ever more slowly, for
/// hundreds of steps. A rise therefore counts as a leak only if it is not smaller than before:
/// over the last windows compared with those of the later half, or within that half.
class GrowthTrend {
 public:
  /// Ignores a rise of less than `min_bytes` over the windows that show it.
  explicit GrowthTrend(int64_t min_bytes) : min_bytes_(min_bytes) {}

  /// Adds a step's value; returns the bytes per step of a leak. Starts over after that.
  std::optional<int64_t> add(int64_t bytes);

 private:
  /// Returns the rise from the low of one window to that of a later one.
  int64_t compute_rise(size_t first, size_t last) const { return window_lows_[last] - window_lows_[first]; }
  /// Returns the rise of the last windows per step.
  std::optional<int64_t> find_sustained_rise() const;
  /// Returns the rise of the later half per step.
  std::optional<int64_t> find_linear_rise() const;

  int64_t min_bytes_;
  int64_t steps_ = 0;
  int64_t current_low_ = 0;  // of the current window
  std::deque<int64_t> window_lows_;
};

/// Watches device and host memory between steps. Warns if either grows: the next steps' device
/// allocations are traced then, to name the part of the model whose allocations stay. Also warns
/// if either is nearly full.
class MemoryWatch {
 public:
  /// `host_limit_bytes`: host memory that the process may use.
  MemoryWatch(at::Device device, int64_t host_limit_bytes, CallbackList& events);

  /// Called before a step's work starts; earlier steps may still run on the device.
  void before_step();
  /// Called after the step was reported.
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
  std::optional<int64_t> growth_;  // growth of device memory while it is traced
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
  /// Returns the bytes in use at the end of a step, by all processes; 0 if they are not known.
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
