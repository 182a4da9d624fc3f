#include "train/loop/watches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::train {

namespace {

const std::pair<nn::Component, const char*> kComponentNames[]{{nn::Component::kVisionTower, "the vision tower"},
                                                              {nn::Component::kProjector, "the projector"},
                                                              {nn::Component::kLanguageModel, "the language model"},
                                                              {nn::Component::kMaskEncoder, "the mask encoder"},
                                                              {nn::Component::kMaskDecoder, "the mask decoder"}};

}  // namespace

bool is_component_trained(const nn::ParameterStore& parameters, nn::Component component) {
  return std::ranges::any_of(parameters.all(), [component](const nn::Parameter& parameter) {
    return parameter.component == component && parameter.tensor.requires_grad();
  });
}

std::string describe_trained_parts(const nn::ParameterStore& parameters) {
  std::vector<std::string> names;
  for (const auto& [component, name] : kComponentNames) {
    if (is_component_trained(parameters, component)) names.emplace_back(name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

void check_samples_reach_trained_parts(const Config& config, const nn::ParameterStore& parameters, bool has_media) {
  if (has_media || is_component_trained(parameters, nn::Component::kLanguageModel)) return;
  throw usage_error(
      "{}: trains only {}, but no sample of {} has an image, video or volume, so no weight gets a gradient; train "
      "another part, or check the data with vlmtrain inspect",
      config.lora.rank > 0 ? keys::lora::kTargetModules : keys::model::kFreezeLanguageModel,
      describe_trained_parts(parameters), config.data.train.name());
}

namespace {

/// Number of consecutive skipped steps that end the run. One or two bad batches occur in healthy
/// runs; after three in a row the weights do not recover. Not tuned.
constexpr int64_t kMaxConsecutiveSkips = 3;
/// Up to this loss scale, an overflow is a problem of the model and not of the scale, since scaling
/// by 1 has no effect.
constexpr double kMinLossScale = 1;

}  // namespace

/// Returns whether a lower loss scale may prevent the overflow. False if the scale has not fallen
/// since the previous skipped step, because it is constant or has reached its minimum.
bool AnomalyWatch::is_recoverable_overflow(const report::StepMetrics& metrics) const {
  return metrics.loss_scale && *metrics.loss_scale > kMinLossScale && std::isfinite(metrics.loss) &&
         (!last_skipped_loss_scale_ || *metrics.loss_scale < *last_skipped_loss_scale_);
}

void AnomalyWatch::observe_step(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (!metrics.skipped) {
    num_consecutive_skips_ = 0;
    last_skipped_loss_scale_.reset();
    return;
  }
  const bool is_recoverable = is_recoverable_overflow(metrics);
  last_skipped_loss_scale_ = metrics.loss_scale;
  if (is_recoverable) {
    callbacks_.on_event({.step = metrics.step,
                         .kind = report::EventKind::kSkippedStep,
                         .message = fmt::format("step {}: gradients overflowed with a loss scale of {:g}; the step is "
                                                "skipped and the scale halved",
                                                metrics.step, *metrics.loss_scale),
                         .ids = step.sample_ids});
    return;
  }
  const std::string loss_and_norm_text = fmt::format("loss {} with gradient norm {}", metrics.loss, metrics.grad_norm);
  callbacks_.on_event({.step = metrics.step,
                       .kind = report::EventKind::kAnomaly,
                       .message = fmt::format("step {}: {}; the step is skipped. Its samples: {}", metrics.step,
                                              loss_and_norm_text, fmt::join(step.sample_ids, ", ")),
                       .ids = step.sample_ids});
  if (++num_consecutive_skips_ < kMaxConsecutiveSkips) return;
  throw run_error(
      "step {}: {}, as in the {} steps before; none of them was applied, and the last checkpoint is intact. Its "
      "samples: {}. Lower {}, or check the samples in events.jsonl",
      metrics.step, loss_and_norm_text, kMaxConsecutiveSkips - 1, fmt::join(step.sample_ids, ", "),
      keys::training::kLearningRate);
}

void GradientWatch::observe_step(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  if (metrics.skipped || metrics.is_dry_run) return;
  ++num_counted_steps_;
  num_media_ += metrics.num_media;
  if (metrics.grad_norm != 0) return;
  ++num_steps_without_gradient_;
  if (num_counted_steps_ != 1) return;
  callbacks_.on_event(
      {.step = metrics.step,
       .kind = report::EventKind::kAnomaly,
       .message = fmt::format("step {}: the gradient of all trained weights is zero, so nothing is learned. {}",
                              metrics.step, reason()),
       .ids = step.sample_ids});
}

std::string GradientWatch::reason() const {
  if (num_media_ == 0) {
    return fmt::format(
        "The run trains only {}, but none of the samples{} has an image, video or volume for it; train another part "
        "(model.freeze_…, {}), or check the data with vlmtrain inspect",
        trained_part_names_, has_media_ ? " so far" : "", keys::lora::kTargetModules);
  }
  return fmt::format(
      "The run trains {}; check model.freeze_…, {} and the weights of the losses, and the data with vlmtrain inspect",
      trained_part_names_, keys::lora::kTargetModules);
}

void check_run_has_learned(const Config& config, const RunState& state, const GradientWatch& gradient_watch,
                           bool resumed, bool stopped_early) {
  if (stopped_early && !state.evaluation.best_metric_value) {
    const BestMetric metric = config.evaluation.best_metric;
    const bool is_loss_metric = metric == BestMetric::kLoss;
    throw run_error(
        "none of the run's evaluations had a finite loss{}, so none of its checkpoints is known to be usable; lower "
        "{}{}, and start again in another {}",
        is_loss_metric ? "" : fmt::format(" and a value of {}={}", keys::training::kBestMetric, to_string(metric)),
        keys::training::kLearningRate,
        is_loss_metric ? ""
                       : fmt::format(" if the loss is not finite, otherwise use {}=loss", keys::training::kBestMetric),
        keys::output::kDir);
  }
  if (gradient_watch.is_gradient_always_zero() && !resumed) {
    throw run_error(
        "the gradient of all trained weights was zero in each step of the run, so nothing was learned. {}. Then start "
        "again in another {}",
        gradient_watch.reason(), keys::output::kDir);
  }
  if (state.num_skipped_steps < state.step) return;
  throw run_error(
      "all {} steps of the run were skipped, since loss or gradients were not finite: the weights are those of {}. "
      "Lower {}, or check that checkpoint and the samples in events.jsonl; then start again in another {}",
      state.step, config.model.path, keys::training::kLearningRate, keys::output::kDir);
}

namespace {

/// Number of steps per window, whose lowest value hides the peaks of single steps. Not tuned.
constexpr int64_t kStepsPerWindow = 10;
/// Number of newest windows that must all rise for a leak. With fewer, random variations would be
/// reported. Not tuned.
constexpr size_t kNumRecentWindows = 4;
/// Bounds memory and time of the watch.
constexpr size_t kMaxWindows = 1000;
/// Smallest ratio of a rise to an earlier one that still counts as a leak. It is below 1 because
/// allocations vary between windows, even with a constant leak. Not tuned.
constexpr double kMinRiseRatio = 0.9;
/// The second half of all windows is divided into quarters. This is the smallest ratio of the lower
/// rise of the last two quarters to the higher rise of the first two that still counts as a leak. A
/// logarithm has a ratio of about 0.6.
constexpr double kMinQuarterRiseRatio = 0.7;
/// Minimum number of windows per quarter. With one window, single values would be compared.
constexpr size_t kMinWindowsPerQuarter = 2;

/// Returns bytes / reference.
double compute_byte_ratio(int64_t bytes, int64_t reference) {
  return static_cast<double>(bytes) / static_cast<double>(reference);
}

}  // namespace

std::optional<int64_t> LeakDetector::add(int64_t bytes) {
  current_window_min_bytes_ = num_steps_ % kStepsPerWindow == 0 ? bytes : std::min(current_window_min_bytes_, bytes);
  if (++num_steps_ % kStepsPerWindow != 0) return std::nullopt;
  window_min_bytes_.push_back(current_window_min_bytes_);
  if (window_min_bytes_.size() > kMaxWindows) window_min_bytes_.pop_front();
  if (window_min_bytes_.size() < 2 * kNumRecentWindows + 1) return std::nullopt;
  auto leak_bytes_per_step = find_sustained_rise();
  if (!leak_bytes_per_step) leak_bytes_per_step = find_linear_rise();
  if (leak_bytes_per_step) window_min_bytes_.clear();
  return leak_bytes_per_step;
}

std::optional<int64_t> LeakDetector::find_sustained_rise() const {
  const size_t newest = window_min_bytes_.size() - 1;
  for (size_t window = newest - kNumRecentWindows; window < newest; ++window) {
    if (compute_rise_bytes(window, window + 1) <= 0) return std::nullopt;
  }
  const int64_t recent_rise_bytes = compute_rise_bytes(newest - kNumRecentWindows, newest);
  if (recent_rise_bytes < min_rise_bytes_) return std::nullopt;
  for (size_t end = std::max(kNumRecentWindows, newest / 2); end < newest - kNumRecentWindows + 1; ++end) {
    const int64_t earlier_rise_bytes = compute_rise_bytes(end - kNumRecentWindows, end);
    if (earlier_rise_bytes > 0 && compute_byte_ratio(recent_rise_bytes, earlier_rise_bytes) < kMinRiseRatio)
      return std::nullopt;
  }
  return recent_rise_bytes / (static_cast<int64_t>(kNumRecentWindows) * kStepsPerWindow);
}

std::optional<int64_t> LeakDetector::find_linear_rise() const {
  constexpr size_t kNumQuarters = 4;
  const size_t newest = window_min_bytes_.size() - 1;
  const size_t windows_per_quarter =
      std::max(kMinWindowsPerQuarter, (newest + 2 * kNumQuarters - 1) / (2 * kNumQuarters));
  if (kNumQuarters * windows_per_quarter > newest) return std::nullopt;
  std::array<int64_t, kNumQuarters> quarter_rise_bytes{};
  for (size_t i = 0; i < kNumQuarters; ++i) {
    const size_t begin = newest - (kNumQuarters - i) * windows_per_quarter;
    quarter_rise_bytes[i] = compute_rise_bytes(begin, begin + windows_per_quarter);
    if (quarter_rise_bytes[i] <= 0) return std::nullopt;
  }
  const int64_t total_rise_bytes = compute_rise_bytes(newest - kNumQuarters * windows_per_quarter, newest);
  const bool is_linear =
      compute_byte_ratio(std::min(quarter_rise_bytes[2], quarter_rise_bytes[3]),
                         std::max(quarter_rise_bytes[0], quarter_rise_bytes[1])) >= kMinQuarterRiseRatio;
  if (!is_linear || total_rise_bytes < min_rise_bytes_) return std::nullopt;
  return total_rise_bytes / (static_cast<int64_t>(kNumQuarters * windows_per_quarter) * kStepsPerWindow);
}

namespace {

/// Number of steps that are traced. Allocations that survive three steps do not belong to steps in
/// progress. More steps would slow training down for longer.
constexpr int64_t kNumTracedSteps = 3;
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
  if (device_leak_bytes_per_step_ && !trace_) trace_.emplace(device_);
}

void MemoryWatch::observe_step(const StepReport& step) {
  const report::StepMetrics& metrics = step.metrics;
  warn_if_memory_full(metrics);
  if (trace_ && ++num_traced_steps_ == kNumTracedSteps) {
    callbacks_.on_event(
        {.step = metrics.step,
         .kind = report::EventKind::kMemoryGrowth,
         .message = fmt::format(
             "step {}: device memory in use between steps grows by {} per step, to {}; the growth is in: {}",
             metrics.step, format_bytes(*device_leak_bytes_per_step_), format_bytes(metrics.allocated_bytes),
             find_growing_component())});
    trace_.reset();
    device_leak_bytes_per_step_.reset();
    num_traced_steps_ = 0;
  }
  if (!device_leak_bytes_per_step_) device_leak_bytes_per_step_ = device_leak_detector_.add(metrics.allocated_bytes);
  if (const auto growth = host_leak_detector_.add(metrics.host_bytes)) {
    callbacks_.on_event({.step = metrics.step,
                         .kind = report::EventKind::kMemoryGrowth,
                         .message = fmt::format("step {}: host memory grows by {} per step, to {}", metrics.step,
                                                format_bytes(*growth), format_bytes(metrics.host_bytes))});
  }
}

void MemoryWatch::warn_if_memory_full(const report::StepMetrics& metrics) {
  const auto warn = [&](FullMemoryAlarm& full_alarm, int64_t used, int64_t total, const char* memory_name,
                        const std::string& advice) {
    if (!full_alarm.update_usage(used, total)) return;
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
       fmt::format("a step that needs more is split further. {} leaves more headroom", keys::memory::kLimitGb));
  warn(host_alarm_, metrics.host_bytes, host_limit_bytes_, "of host memory available to this process",
       fmt::format("above that, the system kills the process. Lower {}, {} or {} to use less",
                   keys::training::kMicroBatchSize, keys::data::kImageMaxPixels, keys::data::kNumWorkers));
}

/// Returns the component with the most bytes allocated and not freed during the trace.
std::string MemoryWatch::find_growing_component() const {
  memory::AllocationReplay replay;
  for (const auto& event : trace_->events()) replay.apply_event(event);
  const auto& bytes = replay.bytes_by_component();
  const auto largest = std::max_element(bytes.begin(), bytes.end());
  return std::string(memory::to_string(static_cast<memory::Component>(std::distance(bytes.begin(), largest))));
}

void DevicePeakMemoryTracker::update(const memory::DeviceMemoryStats& memory) {
  peak_memory_.allocated_peak_bytes = std::max(peak_memory_.allocated_peak_bytes, memory.allocated_peak_bytes);
  peak_memory_.reserved_peak_bytes = std::max(peak_memory_.reserved_peak_bytes, memory.reserved_peak_bytes);
}

void DevicePeakMemoryTracker::update_free_bytes(int64_t free_bytes, int64_t reserved_bytes) {
  const int64_t context_bytes = memory::get_device_properties(device_).total_bytes - free_bytes - reserved_bytes;
  max_context_bytes_ = std::max(max_context_bytes_, context_bytes);
  min_free_bytes_ = std::min(min_free_bytes_.value_or(free_bytes), free_bytes);
}

int64_t DevicePeakMemoryTracker::compute_max_used_bytes() const {
  if (!min_free_bytes_) return 0;
  return memory::get_device_properties(device_).total_bytes - *min_free_bytes_;
}

}  // namespace vlmtrain::train
