#include "train/step/look_ahead_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::train {

namespace {

/// Number of recent steps whose largest excess counts. It is large enough to include large batches,
/// and small enough that changes of other processes on the GPU are forgotten. Not tuned.
constexpr size_t kNumComparedSteps = 20;
/// Smallest increase of the margin: a few segments of PyTorch's allocator. A smaller one would have
/// no effect on a small GPU.
constexpr int64_t kMinMarginIncreaseBytes = int64_t{64} << 20;
/// An out-of-memory error that was not predicted lowers the limit by 1/50 = 2 %. With a smaller
/// share steps failed again; a larger one splits steps that would fit (docs/explanation/memory.md).
constexpr int64_t kMarginIncreaseDivisor = 50;
/// The margin that grows with errors is at most 1/4 of the limit, so that most of it remains
/// usable. Not tuned.
constexpr int64_t kMaxMarginDivisor = 4;
/// Maximum number of successful steps before the margin halves: five doublings of 20. With more, a
/// run would hardly ever use its full limit again.
constexpr int64_t kMaxStepsBeforeMarginHalving = 640;

}  // namespace

void LookAheadMemoryMargin::increase() {
  const int64_t max_bytes = limit_bytes_ / kMaxMarginDivisor;
  error_margin_bytes_ = std::min(
      max_bytes, error_margin_bytes_ + std::max(kMinMarginIncreaseBytes, limit_bytes_ / kMarginIncreaseDivisor));
  num_successful_steps_ = 0;
  steps_before_margin_halving_ = std::min(kMaxStepsBeforeMarginHalving, 2 * steps_before_margin_halving_);
}

void LookAheadMemoryMargin::record_success(int64_t excess_bytes) {
  excess_bytes_.push_back(excess_bytes);
  if (excess_bytes_.size() > kNumComparedSteps) excess_bytes_.pop_front();
  if (error_margin_bytes_ == 0 || ++num_successful_steps_ < steps_before_margin_halving_) return;
  num_successful_steps_ = 0;
  error_margin_bytes_ = error_margin_bytes_ > kMinMarginIncreaseBytes / 2 ? error_margin_bytes_ / 2 : 0;
}

int64_t LookAheadMemoryMargin::bytes() const {
  const int64_t max_excess_bytes =
      excess_bytes_.empty() ? 0 : *std::max_element(excess_bytes_.begin(), excess_bytes_.end());
  return error_margin_bytes_ + std::max<int64_t>(0, max_excess_bytes);
}

namespace {

/// Maximum wait for an answer as a share of a step's duration, which bounds the slowdown by the
/// look-ahead.
constexpr double kMaxWaitFraction = 0.01;
/// Minimum timeout in seconds. A shorter one may expire during a context switch on a loaded
/// machine.
constexpr double kMinTimeoutSeconds = 0.002;
/// Timeout in seconds on a virtual GPU. Only a child that hangs takes this long for a dry run.
constexpr double kVirtualGpuTimeoutSeconds = 120;
/// Number of consecutive late answers after which the look-ahead is stopped, because it is slower
/// than the run. Not tuned.
constexpr int64_t kMaxConsecutiveLateSteps = 10;
/// First step that counts for max_relative_error. Earlier steps load kernels and fill caches.
constexpr int64_t kFirstCountedStep = 10;

}  // namespace

LookAheadClient::LookAheadClient(LookAheadSettings settings, at::Device device, EventHandler on_event)
    : settings_(std::move(settings)), device_(device), on_event_(std::move(on_event)), margin_(settings_.limit_bytes) {
  try {
    look_ahead_ = std::make_unique<planner::LookAheadProcess>(settings_.job, settings_.step_config, settings_.target);
  } catch (const UserError& error) {
    on_event_(report::EventKind::kLookAhead, fmt::format("the run has no look-ahead: {}", error.what()));
  }
}

void LookAheadClient::submit(int64_t step, const std::vector<data::SampleShape>& samples,
                             const engine::StepLayout& layout) {
  if (handle_child_end()) return;
  last_submitted_step_ = step;
  if (releases_cache_next_step_) cache_release_steps_.insert(step);
  look_ahead_->submit({.step = step,
                       .samples = planner::group_samples(samples),
                       .layout = layout,
                       .empty_cache_at_start = releases_cache_next_step_,
                       .limit_bytes = compute_limit_bytes()});
  releases_cache_next_step_ = false;
}

StepPlan LookAheadClient::wait_for_plan(int64_t step, const engine::StepLayout& default_layout, double step_seconds) {
  StepPlan plan{.layout = default_layout, .empty_cache_at_start = cache_release_steps_.erase(step) > 0, .peaks = {}};
  if (handle_child_end()) return plan;
  const auto start = std::chrono::steady_clock::now();
  const double timeout_seconds = settings_.waits_for_answers
                                     ? kVirtualGpuTimeoutSeconds
                                     : std::max(kMinTimeoutSeconds, kMaxWaitFraction * step_seconds);
  const auto forecast = look_ahead_->wait_for_forecast(step, std::chrono::duration<double>(timeout_seconds));
  summary_.wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!forecast) {
    ++summary_.num_late_steps;
    mark_desynchronized();  // the child may have emptied its cache where the run does not
    if (++num_consecutive_late_steps_ >= kMaxConsecutiveLateSteps && !handle_child_end()) {
      look_ahead_.reset();
      on_event_(report::EventKind::kLookAhead,
                fmt::format("step {}: the look-ahead is {} steps late; training continues without it", step,
                            num_consecutive_late_steps_));
    }
    return plan;
  }
  num_consecutive_late_steps_ = 0;
  ++summary_.num_predicted_steps;
  summary_.cpu_seconds += forecast->cpu_seconds;
  if (!forecast->fits) return handle_oversized_step(*forecast);
  plan = {.layout = forecast->layout, .empty_cache_at_start = forecast->empty_cache_at_start, .peaks = forecast->peaks};
  if (plan.layout != default_layout) {
    ++summary_.num_split_steps;
    on_event_(report::EventKind::kLookAheadSplit,
              fmt::format("step {}: the look-ahead predicts that it does not fit; {} micro-batches instead of {}{}",
                          step, plan.layout.split.num_micro_batches(), default_layout.split.num_micro_batches(),
                          plan.layout.recompute != default_layout.recompute ? ", with full recomputation" : ""));
  } else if (plan.empty_cache_at_start) {
    on_event_(report::EventKind::kCacheEmptied, fmt::format("step {}: starts with an empty allocator cache", step));
  }
  return plan;
}

/// Returns the plan of a step that fits with no split. It may succeed, since the plan's limit is
/// lower than the GPU's memory. If it fails, OomGuard reports the sample.
StepPlan LookAheadClient::handle_oversized_step(const planner::MemoryForecast& forecast) {
  ++summary_.num_oversized_steps;
  StepPlan plan{
      .layout = forecast.layout, .empty_cache_at_start = forecast.empty_cache_at_start, .peaks = {}, .fits = false};
  if (forecast.is_complete) {
    plan.peaks = forecast.peaks;
  } else {
    mark_desynchronized();  // the child stopped in the middle of the step, unlike the run
    if (forecast.failed_micro_batch_index >= 0) {
      plan.oversized_sample_index = forecast.layout.split.get_sample_indices(forecast.failed_micro_batch_index).front();
    }
  }
  return plan;
}

void LookAheadClient::compare_with_measurement(int64_t step, const StepPlan& plan,
                                               const memory::DeviceMemoryStats& measured_memory,
                                               bool matches_forecast) {
  if (!matches_forecast) mark_desynchronized();
  // A step that succeeded although it was predicted not to fit shows that the margin is not too
  // small.
  if (matches_forecast && !plan.fits && !plan.peaks) margin_.record_success(0);
  if (!plan.peaks || step < first_comparable_step_) return;
  const int64_t excess_bytes = measured_memory.reserved_peak_bytes - plan.peaks->reserved_bytes;
  margin_.record_success(excess_bytes);
  if (step < kFirstCountedStep || measured_memory.reserved_peak_bytes == 0) return;
  const double error =
      std::abs(static_cast<double>(excess_bytes)) / static_cast<double>(measured_memory.reserved_peak_bytes);
  summary_.max_relative_error = std::max(summary_.max_relative_error, error);
}

void LookAheadClient::mark_desynchronized() {
  releases_cache_next_step_ = true;
  first_comparable_step_ = last_submitted_step_ + 1;
}

/// Returns the plan's limit minus the margin; less if other processes have taken some of the GPU's
/// memory.
int64_t LookAheadClient::compute_limit_bytes() const {
  int64_t limit = settings_.limit_bytes;
  if (!device_.is_cpu()) {
    limit = std::min(limit,
                     memory::get_device_memory_stats(device_).reserved_bytes + memory::get_free_device_bytes(device_));
  }
  return limit - margin_.bytes();
}

bool LookAheadClient::handle_child_end() {
  if (look_ahead_ == nullptr) return true;
  const auto failure = look_ahead_->failure_message();
  if (!failure) return false;
  look_ahead_.reset();
  on_event_(report::EventKind::kLookAhead,
            fmt::format("the look-ahead has ended ({}); training continues without it", *failure));
  return true;
}

}  // namespace vlmtrain::train
