#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "train/callbacks/callback_list.h"
#include "train/watch/fill_level.h"
#include "train/watch/growth_trend.h"
#include "vlmtrain/memory/trace.h"

namespace vlmtrain::train {

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

}  // namespace vlmtrain::train
