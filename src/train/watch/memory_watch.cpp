#include "train/watch/memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "vlmtrain/base/bytes.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kTracedSteps = 3;
constexpr int64_t kMinDeviceGrowthBytes = 4 << 20;
/// Caches of the loader and of libraries settle within some hundred megabytes.
constexpr int64_t kMinHostGrowthBytes = int64_t{256} << 20;

}  // namespace

MemoryWatch::MemoryWatch(at::Device device, int64_t host_limit_bytes, CallbackList& events)
    : device_(device),
      host_limit_bytes_(host_limit_bytes),
      events_(events),
      device_trend_(kMinDeviceGrowthBytes),
      host_trend_(kMinHostGrowthBytes) {}

void MemoryWatch::before_step() {
  if (growth_ && !trace_) trace_.emplace(device_);
}

void MemoryWatch::observe(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  warn_if_full(metrics);
  if (trace_ && ++traced_steps_ == kTracedSteps) {
    events_.on_event(
        {.step = metrics.step,
         .kind = report::EventKind::kMemoryGrowth,
         .message = fmt::format("step {}: device memory in use between steps grows by {} a step, to {} now; "
                                "what stays is of: {}",
                                metrics.step, format_bytes(*growth_), format_bytes(metrics.allocated_bytes),
                                find_growing_component())});
    trace_.reset();
    growth_.reset();
    traced_steps_ = 0;
  }
  if (!growth_) growth_ = device_trend_.add(metrics.allocated_bytes);
  if (const auto growth = host_trend_.add(metrics.host_bytes)) {
    events_.on_event({.step = metrics.step,
                      .kind = report::EventKind::kMemoryGrowth,
                      .message = fmt::format("step {}: host memory grows by {} a step, to {} now", metrics.step,
                                             format_bytes(*growth), format_bytes(metrics.host_bytes))});
  }
}

void MemoryWatch::warn_if_full(const report::StepMetrics& metrics) {
  const auto warn = [&](FillLevel& level, int64_t used, int64_t total, const char* memory_name, const char* advice) {
    if (!level.crosses_threshold(used, total)) return;
    events_.on_event({.step = metrics.step,
                      .kind = report::EventKind::kMemoryFull,
                      .message = fmt::format("step {}: {} of the {} {} are taken ({:.0f} %); {}", metrics.step,
                                             format_bytes(used), format_bytes(total), memory_name,
                                             100 * static_cast<double>(used) / static_cast<double>(total), advice)});
  };
  // What this process has reserved, and what the card has left for it.
  const int64_t available_bytes = metrics.reserved_bytes + metrics.device_free_bytes.value_or(-metrics.reserved_bytes);
  warn(device_level_, metrics.reserved_peak_bytes, available_bytes, "of the card's memory that this process can have",
       "a step that needs more is done in smaller pieces. memory.limit_gb leaves more room");
  warn(host_level_, metrics.host_bytes, host_limit_bytes_, "of memory that this process may use",
       "beyond, the kernel ends it. training.micro_batch_size, data.image_max_pixels and data.num_workers take less if "
       "lowered");
}

std::string MemoryWatch::find_growing_component() const {
  memory::AllocationReplay replay;
  for (const auto& event : trace_->events()) replay.apply(event);
  const auto& bytes = replay.by_component();
  const auto largest = std::max_element(bytes.begin(), bytes.end());
  return std::string(memory::to_string(static_cast<memory::Component>(std::distance(bytes.begin(), largest))));
}

}  // namespace vlmtrain::train
