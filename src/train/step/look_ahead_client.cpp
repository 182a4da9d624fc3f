#include "train/step/look_ahead_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::train {

namespace {

/// Steps whose largest excess counts: long enough to contain the large batches of a run, short
/// enough to forget a change of the other processes on the GPU.
constexpr size_t kComparedSteps = 20;
/// A few segments of PyTorch's allocator; a smaller raise would change nothing on a small GPU.
constexpr int64_t kMinRaiseBytes = int64_t{64} << 20;
/// An unforeseen failure lowers the limit by 2 %. A smaller share fails again, a larger one splits
/// steps that would fit (docs/memory.md).
constexpr int64_t kRaiseDivisor = 50;
/// At most a quarter, so that most of the limit remains for plans.
constexpr int64_t kMaxMarginDivisor = 4;
/// Five doublings of twenty steps; beyond that a run would hardly ever try its full limit again.
constexpr int64_t kMaxGoodSteps = 640;

}  // namespace

void LookAheadMargin::raise() {
  const int64_t max_bytes = limit_bytes_ / kMaxMarginDivisor;
  raised_bytes_ = std::min(max_bytes, raised_bytes_ + std::max(kMinRaiseBytes, limit_bytes_ / kRaiseDivisor));
  good_steps_ = 0;
  good_steps_to_halve_ = std::min(kMaxGoodSteps, 2 * good_steps_to_halve_);
}

void LookAheadMargin::record_success(int64_t excess_bytes) {
  excess_bytes_.push_back(excess_bytes);
  if (excess_bytes_.size() > kComparedSteps) excess_bytes_.pop_front();
  if (raised_bytes_ == 0 || ++good_steps_ < good_steps_to_halve_) return;
  good_steps_ = 0;
  raised_bytes_ = raised_bytes_ > kMinRaiseBytes / 2 ? raised_bytes_ / 2 : 0;
}

int64_t LookAheadMargin::bytes() const {
  const int64_t max_excess = excess_bytes_.empty() ? 0 : *std::max_element(excess_bytes_.begin(), excess_bytes_.end());
  return raised_bytes_ + std::max<int64_t>(0, max_excess);
}

namespace {

/// The slowdown that the look-ahead may cause.
constexpr double kMaxWaitShare = 0.01;
/// Below this a wait is shorter than a context switch of a loaded machine.
constexpr double kMinWaitSeconds = 0.002;
/// Only a child that hangs takes this long for a dry run.
constexpr double kLockstepWaitSeconds = 120;
/// A child that is late this often is slower than the run, not delayed once.
constexpr int64_t kMaxConsecutiveLateSteps = 10;
/// The first steps load kernels and fill caches, and would dominate the worst error.
constexpr int64_t kFirstCountedStep = 10;

}  // namespace

LookAheadClient::LookAheadClient(LookAheadSettings settings, at::Device device, OnEvent on_event)
    : settings_(std::move(settings)), device_(device), on_event_(std::move(on_event)), margin_(settings_.limit_bytes) {
  try {
    look_ahead_ = std::make_unique<planner::LookAhead>(settings_.job, settings_.step_config, settings_.target);
  } catch (const UserError& error) {
    on_event_(report::EventKind::kLookAhead, fmt::format("the run has no look-ahead: {}", error.what()));
  }
}

void LookAheadClient::submit(int64_t step, const std::vector<data::SampleShape>& samples,
                             const engine::StepLayout& layout) {
  if (is_unavailable()) return;
  last_submitted_ = step;
  if (release_next_) release_steps_.insert(step);
  look_ahead_->submit({.step = step,
                       .samples = planner::group_samples(samples),
                       .layout = layout,
                       .empty_cache_first = release_next_,
                       .limit_bytes = compute_limit_bytes()});
  release_next_ = false;
}

StepPlan LookAheadClient::await(int64_t step, const engine::StepLayout& default_layout, double step_seconds) {
  StepPlan plan{.layout = default_layout, .empty_cache_first = release_steps_.erase(step) > 0, .peaks = {}};
  if (is_unavailable()) return plan;
  const auto start = std::chrono::steady_clock::now();
  const double timeout_seconds =
      settings_.is_lockstep ? kLockstepWaitSeconds : std::max(kMinWaitSeconds, kMaxWaitShare * step_seconds);
  const auto forecast = look_ahead_->get_forecast(step, std::chrono::duration<double>(timeout_seconds));
  summary_.wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!forecast) {
    ++summary_.late_steps;
    mark_desynchronized();  // the child may have planned with a release that the run has not made
    if (++consecutive_late_steps_ >= kMaxConsecutiveLateSteps && !is_unavailable()) {
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
  if (!forecast->fits) return handle_unfit(*forecast);
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

/// The plan's limit is below the GPU's memory, so the step may succeed. If it fails, the guard
/// names the sample.
StepPlan LookAheadClient::handle_unfit(const planner::MemoryForecast& forecast) {
  ++summary_.unfit_steps;
  StepPlan plan{.layout = forecast.layout, .empty_cache_first = forecast.empty_cache_first, .peaks = {}, .fits = false};
  if (forecast.completed) {
    plan.peaks = forecast.peaks;
  } else {
    mark_desynchronized();  // the child's step ended where the run continued
    if (forecast.failed_micro_batch >= 0) {
      plan.oversized_sample = forecast.layout.split.micro_batch(forecast.failed_micro_batch).front();
    }
  }
  return plan;
}

void LookAheadClient::compare(int64_t step, const StepPlan& plan, const memory::DeviceMemory& measured_memory,
                              bool matches_forecast) {
  if (!matches_forecast) mark_desynchronized();
  // A step that was predicted not to fit and succeeded had more room than the child's limit leaves.
  if (matches_forecast && !plan.fits && !plan.peaks) margin_.record_success(0);
  if (!plan.peaks || step < first_comparable_step_) return;
  const int64_t excess = measured_memory.reserved_peak_bytes - plan.peaks->reserved_bytes;
  margin_.record_success(excess);
  if (step < kFirstCountedStep || measured_memory.reserved_peak_bytes == 0) return;
  const double error = std::abs(static_cast<double>(excess)) / static_cast<double>(measured_memory.reserved_peak_bytes);
  summary_.worst_error = std::max(summary_.worst_error, error);
}

void LookAheadClient::mark_desynchronized() {
  release_next_ = true;
  first_comparable_step_ = last_submitted_ + 1;
}

/// Never more than the GPU has for this process now: other processes may have taken some.
int64_t LookAheadClient::compute_limit_bytes() const {
  int64_t limit = settings_.limit_bytes;
  if (!device_.is_cpu()) {
    limit = std::min(limit, memory::device_memory(device_).reserved_bytes + memory::free_bytes(device_));
  }
  return limit - margin_.bytes();
}

bool LookAheadClient::is_unavailable() {
  if (look_ahead_ == nullptr) return true;
  const auto failure = look_ahead_->failure();
  if (!failure) return false;
  look_ahead_.reset();
  on_event_(report::EventKind::kLookAhead,
            fmt::format("the look-ahead has ended ({}); training continues without it", *failure));
  return true;
}

}  // namespace vlmtrain::train
