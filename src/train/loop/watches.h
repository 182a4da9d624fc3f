#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "train/run/callbacks.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

/// Returns whether a parameter of `component` is trained.
bool is_component_trained(const nn::ParameterStore& parameters, nn::Component component);

/// Returns the trained parts of a model for messages, for example "the vision tower and the
/// projector".
std::string describe_trained_parts(const nn::ParameterStore& parameters);

/// Throws UserError (kUsage) if no sample has media (`has_media` is false) and the language model
/// is not trained, because no trained weight would get a gradient.
void check_samples_reach_trained_parts(const Config& config, const nn::ParameterStore& parameters, bool has_media);

/// A watch for steps that were skipped because their loss or gradient was not finite. It raises an
/// event with the samples of each, and throws UserError (kFailed) after three in a row. With fp16,
/// overflows of gradients do not count while the loss scale can still be lowered.
class AnomalyWatch {
 public:
  /// `callbacks` receives the events and must outlive the object.
  explicit AnomalyWatch(CallbackList& callbacks) : callbacks_(callbacks) {}

  /// Observes a step, in the order of steps. Called after the step was reported.
  void observe_step(const StepReport& step);

 private:
  bool is_recoverable_overflow(const report::StepMetrics& metrics) const;

  CallbackList& callbacks_;
  int64_t num_consecutive_skips_ = 0;
  std::optional<double> last_skipped_loss_scale_;  // of the current series of skipped steps
};

/// A watch for steps whose gradient is exactly zero, so that the model learns nothing. It raises an
/// event only for the first step of the process, since the samples of a later step may lack the
/// media that the trained parts need.
class GradientWatch {
 public:
  /// `callbacks` receives the event and must outlive the object. `trained_parts`:
  /// describe_trained_parts(). `has_media`: some sample may have media.
  GradientWatch(CallbackList& callbacks, std::string trained_parts, bool has_media)
      : callbacks_(callbacks), trained_part_names_(std::move(trained_parts)), has_media_(has_media) {}

  /// Observes a step, in the order of steps. Called after the step was reported.
  void observe_step(const StepReport& step);

  /// Returns whether there were steps and all of them had a gradient of zero.
  bool is_gradient_always_zero() const {
    return num_counted_steps_ > 0 && num_counted_steps_ == num_steps_without_gradient_;
  }
  /// Returns a possible reason with advice.
  std::string reason() const;

 private:
  CallbackList& callbacks_;
  std::string trained_part_names_;
  bool has_media_;
  int64_t num_counted_steps_ = 0;  // without skipped steps
  int64_t num_steps_without_gradient_ = 0;
  int64_t num_media_ = 0;  // media in the counted steps
};

/// Throws UserError (kFailed) if a completed run has learned nothing: it stopped early
/// (`stopped_early`) without a finite evaluation, all gradients were zero, or every step was
/// skipped. `resumed`: the run has steps of earlier processes, whose gradients are not known.
void check_run_has_learned(const Config& config, const RunState& state, const GradientWatch& gradient_watch,
                           bool resumed, bool stopped_early);

/// Hysteresis for the warning that a memory is nearly full.
class FullMemoryAlarm {
 public:
  /// Returns true if more than 95 % of `total_bytes` are used, for the first time or for the first
  /// time since usage was below 90 %. Returns false if `total_bytes` is 0, which means unknown.
  bool update_usage(int64_t used_bytes, int64_t total_bytes) {
    if (total_bytes <= 0) return false;
    const double used_fraction = static_cast<double>(used_bytes) / static_cast<double>(total_bytes);
    if (used_fraction < kResetFraction) was_reported_ = false;
    if (used_fraction <= kFullFraction || was_reported_) return false;
    was_reported_ = true;
    return true;
  }

 private:
  /// Share at which other processes or fragmentation may make the next step fail. Not tuned.
  static constexpr double kFullFraction = 0.95;
  /// Lower than kFullFraction, so that usage that varies around it does not repeat the warning. Not
  /// tuned.
  static constexpr double kResetFraction = 0.90;
  bool was_reported_ = false;
};

/// A detector of memory leaks. Without a leak, memory between steps is constant except for short
/// peaks. A leak raises the lowest value of each window of steps. A cache that fills, such as
/// oneDNN's cache of kernels by shape, also grows for hundreds of steps, but more and more slowly.
/// A rise therefore counts as a leak only if it does not slow down: the rise over the last four
/// windows is compared with earlier rises in the second half of all windows, and the quarters of
/// that half with each other.
class LeakDetector {
 public:
  /// Ignores a rise of less than `min_bytes` over the windows that show it.
  explicit LeakDetector(int64_t min_bytes) : min_rise_bytes_(min_bytes) {}

  /// Adds the memory after a step. Returns the growth in bytes per step if there is a leak, and
  /// then starts over; otherwise nullopt.
  std::optional<int64_t> add(int64_t bytes);

 private:
  /// Returns the rise of the lowest value from window `first` to the later window `last`.
  int64_t compute_rise_bytes(size_t first, size_t last) const {
    return window_min_bytes_[last] - window_min_bytes_[first];
  }
  /// Returns the rise per step over the last windows if it is not slower than earlier ones.
  std::optional<int64_t> find_sustained_rise() const;
  /// Returns the rise per step over the second half of all windows if it does not slow down.
  std::optional<int64_t> find_linear_rise() const;

  int64_t min_rise_bytes_;
  int64_t num_steps_ = 0;
  int64_t current_window_min_bytes_ = 0;  // of the values so far
  std::deque<int64_t> window_min_bytes_;  // of complete windows
};

/// A watch of device and host memory between steps. It raises an event if one of them leaks or is
/// nearly full. Before it reports a leak of device memory, it traces the allocations of the next
/// steps, to name the part of the model that keeps them.
class MemoryWatch {
 public:
  /// `host_limit_bytes`: host memory that the process may use. `callbacks` receives the events and
  /// must outlive the object.
  MemoryWatch(at::Device device, int64_t host_limit_bytes, CallbackList& callbacks);

  /// Called before a step's work starts; earlier steps may still run on the device.
  void on_step_start();
  /// Observes a step, in the order of steps. Called after the step was reported.
  void observe_step(const StepReport& step);

 private:
  void warn_if_memory_full(const report::StepMetrics& metrics);
  std::string find_growing_component() const;

  at::Device device_;
  int64_t host_limit_bytes_;
  CallbackList& callbacks_;
  FullMemoryAlarm device_alarm_;
  FullMemoryAlarm host_alarm_;
  LeakDetector device_leak_detector_;
  LeakDetector host_leak_detector_;
  std::optional<int64_t> device_leak_bytes_per_step_;  // set from the detection to the report
  int64_t num_traced_steps_ = 0;
  std::optional<memory::AllocationTrace> trace_;
};

/// A tracker of the maximum device memory during the steps of a run.
class DevicePeakMemoryTracker {
 public:
  explicit DevicePeakMemoryTracker(at::Device device) : device_(device) {}

  /// Includes the peaks of a step or an evaluation.
  void update(const memory::DeviceMemoryStats& memory);
  /// Includes the GPU's free bytes and the bytes that LibTorch has reserved at the end of a step.
  void update_free_bytes(int64_t free_bytes, int64_t reserved_bytes);

  /// Returns the maximum peaks; other fields are 0.
  const memory::DeviceMemoryStats& peak_memory() const { return peak_memory_; }
  /// Returns the maximum bytes that all processes used at the end of a step; 0 if unknown.
  int64_t compute_max_used_bytes() const;
  /// Returns the maximum bytes in use outside LibTorch's allocator, by this and other processes.
  int64_t max_context_bytes() const { return max_context_bytes_; }

 private:
  at::Device device_;
  memory::DeviceMemoryStats peak_memory_;
  int64_t max_context_bytes_ = 0;
  std::optional<int64_t> min_free_bytes_;
};

}  // namespace vlmtrain::train
