#include "train/twin_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

constexpr double kShareOfStep = 0.01;
constexpr double kLeastPatienceSeconds = 0.002;
constexpr double kLockstepPatienceSeconds = 120;
constexpr int64_t kMostLateInARow = 10;
constexpr int64_t kSettledStep = 10;

}  // namespace

TwinLink::TwinLink(TwinSettings settings, at::Device device, OnEvent on_event)
    : settings_(std::move(settings)), device_(device), on_event_(std::move(on_event)), margin_(settings_.limit_bytes) {
  try {
    twin_ = std::make_unique<planner::Twin>(settings_.job, settings_.choices, settings_.card);
  } catch (const UserError& error) {
    on_event_(report::EventKind::kTwin, fmt::format("the run has no twin: {}", error.what()));
  }
}

void TwinLink::announce(int64_t step, const std::vector<data::SampleShape>& samples, const engine::StepLayout& layout) {
  if (is_lost()) return;
  last_announced_ = step;
  if (release_next_) releases_.insert(step);
  twin_->announce({.step = step,
                   .samples = planner::groups_of(samples),
                   .layout = layout,
                   .release_first = release_next_,
                   .limit_bytes = limit_now()});
  release_next_ = false;
}

StepPlan TwinLink::await(int64_t step, const engine::StepLayout& planned, double step_seconds) {
  StepPlan foreseen{.layout = planned, .release_first = releases_.erase(step) > 0, .peaks = {}};
  if (is_lost()) return foreseen;
  const auto start = std::chrono::steady_clock::now();
  const double patience =
      settings_.waits ? kLockstepPatienceSeconds : std::max(kLeastPatienceSeconds, kShareOfStep * step_seconds);
  const auto answer = twin_->foresight(step, std::chrono::duration<double>(patience));
  summary_.waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!answer) {
    ++summary_.late_steps;
    diverge();  // the twin may have decided something that the run does not know
    if (++late_in_a_row_ >= kMostLateInARow && !is_lost()) {
      twin_.reset();
      on_event_(report::EventKind::kTwin,
                fmt::format("step {}: the twin is {} steps behind; training goes on without it", step, late_in_a_row_));
    }
    return foreseen;
  }
  late_in_a_row_ = 0;
  ++summary_.steps;
  summary_.cpu_seconds += answer->cpu_seconds;
  if (!answer->fits) return hopeless(*answer);
  foreseen = {.layout = answer->layout, .release_first = answer->release_first, .peaks = answer->peaks};
  if (foreseen.layout != planned) {
    ++summary_.cut_steps;
    on_event_(report::EventKind::kForeseenSplit,
              fmt::format("step {}: would not have fitted; {} micro-batches instead of {}{}", step,
                          foreseen.layout.cut.micro_batches(), planned.cut.micro_batches(),
                          foreseen.layout.recompute != planned.recompute ? ", everything recomputed" : ""));
  } else if (foreseen.release_first) {
    on_event_(report::EventKind::kCacheEmptied, fmt::format("step {}: begins with an empty cache", step));
  }
  return foreseen;
}

/// The plan's limit is not the card's: the step may go well all the same. If it does not, the guard says whose fault it
/// is.
StepPlan TwinLink::hopeless(const planner::Foresight& answer) {
  ++summary_.hopeless_steps;
  StepPlan foreseen{.layout = answer.layout, .release_first = answer.release_first, .peaks = {}, .fits = false};
  if (answer.done) {
    foreseen.peaks = answer.peaks;
  } else {
    diverge();  // the twin's step ended where the run's goes on
    if (answer.failed_micro_batch >= 0) {
      foreseen.sample_that_does_not = answer.layout.cut.micro_batch(answer.failed_micro_batch).front();
    }
  }
  return foreseen;
}

void TwinLink::compare(int64_t step, const StepPlan& foreseen, const memory::DeviceMemory& measured, bool as_foreseen) {
  if (!as_foreseen) diverge();
  // What went well although it was given up had more room than the twin's limit leaves.
  if (as_foreseen && !foreseen.fits && !foreseen.peaks) margin_.went_well(0);
  if (!foreseen.peaks || step < comparable_from_) return;
  const int64_t excess = measured.reserved_peak_bytes - foreseen.peaks->reserved_bytes;
  margin_.went_well(excess);
  if (step < kSettledStep || measured.reserved_peak_bytes == 0) return;
  const double error = std::abs(static_cast<double>(excess)) / static_cast<double>(measured.reserved_peak_bytes);
  summary_.worst_error = std::max(summary_.worst_error, error);
}

void TwinLink::diverge() {
  release_next_ = true;
  comparable_from_ = last_announced_ + 1;
}

/// Never more than the card has for this process now: others may have taken some.
int64_t TwinLink::limit_now() const {
  int64_t limit = settings_.limit_bytes;
  if (!device_.is_cpu()) {
    limit = std::min(limit, memory::device_memory(device_).reserved_bytes + memory::free_bytes(device_));
  }
  return limit - margin_.bytes();
}

bool TwinLink::is_lost() {
  if (twin_ == nullptr) return true;
  const auto failure = twin_->failure();
  if (!failure) return false;
  twin_.reset();
  on_event_(report::EventKind::kTwin, fmt::format("the twin has ended ({}); training goes on without it", *failure));
  return true;
}

}  // namespace vlmtrain::train
