#include "train/watch/memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain::train {

namespace {

/// Number of steps per window, whose lowest value hides the peaks of single steps. Not tuned.
constexpr int64_t kWindowSteps = 10;
/// Number of consecutive rises that count as a leak. With fewer, random variations would be
/// reported. Not tuned.
constexpr size_t kRecentWindows = 4;
/// Bounds memory and time of the watch.
constexpr size_t kMaxWindows = 1000;
/// Smallest ratio of a rise to an earlier one that still counts as a leak. It is below 1 because
/// allocations vary between windows, even with a constant leak. Not tuned.
constexpr double kMinRiseRatio = 0.9;
/// The second half of all windows is divided into quarters. This is the smallest ratio of the lower
/// rise of the last two quarters to the higher rise of the first two that still counts as a leak. A
/// logarithm has a ratio of about 0.6.
constexpr double kMinEvenness = 0.7;
/// Minimum number of windows per quarter. With one window, single values would be compared.
constexpr size_t kMinQuarterWindows = 2;

/// Returns bytes / reference.
double compute_byte_ratio(int64_t bytes, int64_t reference) {
  return static_cast<double>(bytes) / static_cast<double>(reference);
}

}  // namespace

std::optional<int64_t> LeakDetector::add(int64_t bytes) {
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

std::optional<int64_t> LeakDetector::find_sustained_rise() const {
  const size_t newest = window_lows_.size() - 1;
  for (size_t window = newest - kRecentWindows; window < newest; ++window) {
    if (compute_rise(window, window + 1) <= 0) return std::nullopt;
  }
  const int64_t recent_rise = compute_rise(newest - kRecentWindows, newest);
  if (recent_rise < min_bytes_) return std::nullopt;
  for (size_t end = std::max(kRecentWindows, newest / 2); end < newest - kRecentWindows + 1; ++end) {
    const int64_t earlier_rise = compute_rise(end - kRecentWindows, end);
    if (earlier_rise > 0 && compute_byte_ratio(recent_rise, earlier_rise) < kMinRiseRatio) return std::nullopt;
  }
  return recent_rise / (static_cast<int64_t>(kRecentWindows) * kWindowSteps);
}

std::optional<int64_t> LeakDetector::find_linear_rise() const {
  constexpr size_t kQuarters = 4;
  const size_t newest = window_lows_.size() - 1;
  const size_t windows_per_quarter = std::max(kMinQuarterWindows, (newest + 2 * kQuarters - 1) / (2 * kQuarters));
  if (kQuarters * windows_per_quarter > newest) return std::nullopt;
  std::array<int64_t, kQuarters> rises{};
  for (size_t i = 0; i < kQuarters; ++i) {
    const size_t begin = newest - (kQuarters - i) * windows_per_quarter;
    rises[i] = compute_rise(begin, begin + windows_per_quarter);
    if (rises[i] <= 0) return std::nullopt;
  }
  const int64_t total_rise = compute_rise(newest - kQuarters * windows_per_quarter, newest);
  const bool is_linear = compute_byte_ratio(std::min(rises[2], rises[3]), std::max(rises[0], rises[1])) >= kMinEvenness;
  if (!is_linear || total_rise < min_bytes_) return std::nullopt;
  return total_rise / (static_cast<int64_t>(kQuarters * windows_per_quarter) * kWindowSteps);
}

namespace {

/// Number of steps that are traced. Allocations that survive three steps do not belong to steps in
/// progress. More steps would slow training down for longer.
constexpr int64_t kTracedSteps = 3;
/// Twice the smallest segment that PyTorch's allocator takes from the driver, 2 MiB.
constexpr int64_t kMinDeviceGrowthBytes = 4 << 20;
/// Caches of the loader and of libraries grow by some hundred megabytes before they are full. Not
/// tuned.
constexpr int64_t kMinHostGrowthBytes = int64_t{256} << 20;

}  // namespace

MemoryWatch::MemoryWatch(at::Device device, int64_t host_limit_bytes, CallbackList& callbacks)
    : device_(device),
      host_limit_bytes_(host_limit_bytes),
      callbacks_(callbacks),
      device_leak_detector_(kMinDeviceGrowthBytes),
      host_leak_detector_(kMinHostGrowthBytes) {}

void MemoryWatch::on_step_start() {
  if (device_growth_bytes_ && !trace_) trace_.emplace(device_);
}

void MemoryWatch::observe_step(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  warn_if_memory_full(metrics);
  if (trace_ && ++traced_steps_ == kTracedSteps) {
    callbacks_.on_event(
        {.step = metrics.step,
         .kind = report::EventKind::kMemoryGrowth,
         .message = fmt::format(
             "step {}: device memory in use between steps grows by {} per step, to {} now; the growth is in: {}",
             metrics.step, format_bytes(*device_growth_bytes_), format_bytes(metrics.allocated_bytes),
             find_growing_component())});
    trace_.reset();
    device_growth_bytes_.reset();
    traced_steps_ = 0;
  }
  if (!device_growth_bytes_) device_growth_bytes_ = device_leak_detector_.add(metrics.allocated_bytes);
  if (const auto growth = host_leak_detector_.add(metrics.host_bytes)) {
    callbacks_.on_event({.step = metrics.step,
                         .kind = report::EventKind::kMemoryGrowth,
                         .message = fmt::format("step {}: host memory grows by {} per step, to {} now", metrics.step,
                                                format_bytes(*growth), format_bytes(metrics.host_bytes))});
  }
}

void MemoryWatch::warn_if_memory_full(const report::StepMetrics& metrics) {
  const auto warn = [&](FullMemoryAlarm& full_alarm, int64_t used, int64_t total, const char* memory_name,
                        const char* advice) {
    if (!full_alarm.crosses_threshold(used, total)) return;
    callbacks_.on_event({.step = metrics.step,
                         .kind = report::EventKind::kMemoryFull,
                         .message = fmt::format("step {}: {} of the {} {} are used ({:.0f} %); {}", metrics.step,
                                                format_bytes(used), format_bytes(total), memory_name,
                                                100 * static_cast<double>(used) / static_cast<double>(total), advice)});
  };
  // Memory that this process has reserved, plus memory that is free on the GPU; 0 if that is
  // unknown.
  const int64_t available_bytes = metrics.reserved_bytes + metrics.device_free_bytes.value_or(-metrics.reserved_bytes);
  warn(device_alarm_, metrics.reserved_peak_bytes, available_bytes, "of GPU memory available to this process",
       "a step that needs more is split further. memory.limit_gb leaves more headroom");
  warn(host_alarm_, metrics.host_bytes, host_limit_bytes_, "of host memory available to this process",
       "above that, the kernel kills the process. Lower training.micro_batch_size, data.image_max_pixels or "
       "data.num_workers to "
       "use less");
}

/// Returns the component with the most bytes allocated and not freed during the trace.
std::string MemoryWatch::find_growing_component() const {
  memory::AllocationReplay replay;
  for (const auto& event : trace_->events()) replay.apply_event(event);
  const auto& bytes = replay.bytes_by_component();
  const auto largest = std::max_element(bytes.begin(), bytes.end());
  return std::string(memory::to_string(static_cast<memory::Component>(std::distance(bytes.begin(), largest))));
}

void DevicePeaks::update(const memory::DeviceMemoryStats& memory) {
  memory_.allocated_peak_bytes = std::max(memory_.allocated_peak_bytes, memory.allocated_peak_bytes);
  memory_.reserved_peak_bytes = std::max(memory_.reserved_peak_bytes, memory.reserved_peak_bytes);
}

void DevicePeaks::update_free_bytes(int64_t free_bytes, int64_t reserved_bytes) {
  const int64_t context_bytes = memory::describe_device(device_).total_bytes - free_bytes - reserved_bytes;
  max_context_bytes_ = std::max(max_context_bytes_, context_bytes);
  min_free_bytes_ = std::min(min_free_bytes_.value_or(free_bytes), free_bytes);
}

int64_t DevicePeaks::max_used_bytes() const {
  if (!min_free_bytes_) return 0;
  return memory::describe_device(device_).total_bytes - *min_free_bytes_;
}

}  // namespace vlmtrain::train
