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
constexpr size_t kComparedSteps = 20;
/// Smallest increase of the margin: a few segments of PyTorch's allocator. A smaller one would have
/// no effect on a small GPU.
constexpr int64_t kMinRaiseBytes = int64_t{64} << 20;
/// An out-of-memory error that was not predicted lowers the limit by 1/50 = 2 %. With a smaller
/// share steps failed again; a larger one splits steps that would fit (docs/memory.md).
constexpr int64_t kRaiseDivisor = 50;
/// The margin that grows with errors is at most 1/4 of the limit, so that most of it remains
/// usable. Not tuned.
constexpr int64_t kMaxMarginDivisor = 4;
/// Maximum number of successful steps before the margin halves: five doublings of 20. With more, a
/// run would hardly ever use its full limit again.
constexpr int64_t kMaxStepsUntilHalving = 640;

}  // namespace

void LookAheadMargin::increase() {
  const int64_t max_bytes = limit_bytes_ / kMaxMarginDivisor;
  raised_bytes_ = std::min(max_bytes, raised_bytes_ + std::max(kMinRaiseBytes, limit_bytes_ / kRaiseDivisor));
  successful_steps_ = 0;
  steps_until_halving_ = std::min(kMaxStepsUntilHalving, 2 * steps_until_halving_);
}

void LookAheadMargin::record_success(int64_t excess_bytes) {
  excess_bytes_.push_back(excess_bytes);
  if (excess_bytes_.size() > kComparedSteps) excess_bytes_.pop_front();
  if (raised_bytes_ == 0 || ++successful_steps_ < steps_until_halving_) return;
  successful_steps_ = 0;
  raised_bytes_ = raised_bytes_ > kMinRaiseBytes / 2 ? raised_bytes_ / 2 : 0;
}

int64_t LookAheadMargin::bytes() const {
  const int64_t max_excess = excess_bytes_.empty() ? 0 : *std::max_element(excess_bytes_.begin(), excess_bytes_.end());
  return raised_bytes_ + std::max<int64_t>(0, max_excess);
}

namespace {

/// Maximum wait for an answer as a share of a step's duration, which bounds the slowdown by the
/// look-ahead.
constexpr double kMaxWaitShare = 0.01;
/// Minimum timeout in seconds. A shorter one may expire during a context switch on a loaded
/// machine.
constexpr double kMinWaitSeconds = 0.002;
/// Timeout in seconds on a virtual GPU. Only a child that hangs takes this long for a dry run.
constexpr double kLockstepWaitSeconds = 120;
/// Number of consecutive late answers after which the look-ahead is stopped, because it is slower
/// than the run. Not tuned.
constexpr int64_t kMaxConsecutiveLateSteps = 10;
/// First step that counts for the worst error. Earlier steps load kernels and fill caches.
constexpr int64_t kFirstCountedStep = 10;

}  // namespace

LookAheadClient::LookAheadClient(LookAheadSettings settings, at::Device device, EventHandler on_event)
    : settings_(std::move(settings)), device_(device), on_event_(std::move(on_event)), margin_(settings_.limit_bytes) {
  try {
    look_ahead_ = std::make_unique<planner::LookAhead>(settings_.job, settings_.step_config, settings_.target);
  } catch (const UserError& error) {
    on_event_(report::EventKind::kLookAhead, fmt::format("the run has no look-ahead: {}", error.what()));
  }
}

void LookAheadClient::submit(int64_t step, const std::vector<data::SampleShape>& samples,
                             const engine::StepLayout& layout) {
  if (check_child_ended()) return;
  last_submitted_step_ = step;
  if (releases_cache_next_) cache_release_steps_.insert(step);
  look_ahead_->submit({.step = step,
                       .samples = planner::group_samples(samples),
                       .layout = layout,
                       .empty_cache_first = releases_cache_next_,
                       .limit_bytes = compute_limit_bytes()});
  releases_cache_next_ = false;
}

StepPlan LookAheadClient::await_plan(int64_t step, const engine::StepLayout& default_layout, double step_seconds) {
  StepPlan plan{.layout = default_layout, .empty_cache_first = cache_release_steps_.erase(step) > 0, .peaks = {}};
  if (check_child_ended()) return plan;
  const auto start = std::chrono::steady_clock::now();
  const double timeout_seconds =
      settings_.is_lockstep ? kLockstepWaitSeconds : std::max(kMinWaitSeconds, kMaxWaitShare * step_seconds);
  const auto forecast = look_ahead_->wait_for_forecast(step, std::chrono::duration<double>(timeout_seconds));
  summary_.wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!forecast) {
    ++summary_.late_steps;
    mark_desynchronized();  // the child may have emptied its cache where the run does not
    if (++consecutive_late_steps_ >= kMaxConsecutiveLateSteps && !check_child_ended()) {
      look_ahead_.reset();
      on_event_(report::EventKind::kLookAhead,
                fmt::format("step {}: the look-ahead is {} steps late; training continues without it", step,
                            consecutive_late_steps_));
    }
    return plan;
  }
  consecutive_late_steps_ = 0;
  ++summary_.steps;
  summary_.cpu_seconds += forecast->cpu_seconds;
  if (!forecast->fits) return handle_unfit_step(*forecast);
  plan = {.layout = forecast->layout, .empty_cache_first = forecast->empty_cache_first, .peaks = forecast->peaks};
  if (plan.layout != default_layout) {
    ++summary_.split_steps;
    on_event_(report::EventKind::kForecastSplit,
              fmt::format("step {}: would not have fit; {} micro-batches instead of {}{}", step,
                          plan.layout.split.micro_batches(), default_layout.split.micro_batches(),
                          plan.layout.recompute != default_layout.recompute ? ", everything recomputed" : ""));
  } else if (plan.empty_cache_first) {
    on_event_(report::EventKind::kCacheEmptied, fmt::format("step {}: starts with an empty cache", step));
  }
  return plan;
}

/// Returns the plan of a step that fits with no split. It may succeed, since the plan's limit is
/// lower than the GPU's memory. If it fails, OomGuard reports the sample.
StepPlan LookAheadClient::handle_unfit_step(const planner::MemoryForecast& forecast) {
  ++summary_.unfit_steps;
  StepPlan plan{.layout = forecast.layout, .empty_cache_first = forecast.empty_cache_first, .peaks = {}, .fits = false};
  if (forecast.completed) {
    plan.peaks = forecast.peaks;
  } else {
    mark_desynchronized();  // the child stopped in the middle of the step, unlike the run
    if (forecast.failed_micro_batch >= 0) {
      plan.oversized_sample_index = forecast.layout.split.micro_batch(forecast.failed_micro_batch).front();
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
  const int64_t excess = measured_memory.reserved_peak_bytes - plan.peaks->reserved_bytes;
  margin_.record_success(excess);
  if (step < kFirstCountedStep || measured_memory.reserved_peak_bytes == 0) return;
  const double error = std::abs(static_cast<double>(excess)) / static_cast<double>(measured_memory.reserved_peak_bytes);
  summary_.max_relative_error = std::max(summary_.max_relative_error, error);
}

void LookAheadClient::mark_desynchronized() {
  releases_cache_next_ = true;
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

bool LookAheadClient::check_child_ended() {
  if (look_ahead_ == nullptr) return true;
  const auto failure = look_ahead_->failure();
  if (!failure) return false;
  look_ahead_.reset();
  on_event_(report::EventKind::kLookAhead,
            fmt::format("the look-ahead has ended ({}); training continues without it", *failure));
  return true;
}

}  // namespace vlmtrain::train
