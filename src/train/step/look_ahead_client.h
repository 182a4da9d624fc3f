#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "train/step/step.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/look_ahead.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::train {

/// The additional margin by which the look-ahead's limit is lowered, beyond the plan's. It has two
/// parts: the largest recent excess of measured over predicted memory, and a share of the limit
/// that grows with every unforeseen out-of-memory error. The share halves after twenty successful
/// steps, and after twice as many with each further error, so that a run does not fail again and
/// again at the same limit.
class LookAheadMargin {
 public:
  explicit LookAheadMargin(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Records an out-of-memory error that was not predicted.
  void raise();

  /// Records a step that ran as predicted and reserved `excess_bytes` more than predicted (less, if
  /// negative).
  void record_success(int64_t excess_bytes);

  /// Returns the additional margin.
  int64_t bytes() const;

 private:
  int64_t limit_bytes_;
  int64_t raised_bytes_ = 0;
  int64_t good_steps_ = 0;  // since the last change of the margin
  int64_t good_steps_to_halve_ = 10;
  std::deque<int64_t> excess_bytes_;  // of the last steps
};

/// The plan that the look-ahead starts from.
struct LookAheadSettings {
  planner::Job job;
  planner::StepConfig step_config;
  planner::VirtualGpu target;
  int64_t limit_bytes = 0;  ///< bytes that the plan lets the allocator reserve
  /// The run is on a virtual GPU, whose steps take no time: it waits for each answer.
  bool is_lockstep = false;
};

/// The results of the look-ahead over a run.
struct LookAheadSummary {
  int64_t steps = 0;        ///< predicted steps
  int64_t split_steps = 0;  ///< predicted steps that were split because they would not have fitted
  int64_t late_steps = 0;   ///< steps without an answer in time
  int64_t unfit_steps = 0;  ///< steps predicted not to fit however they are split
  double worst_error = 0;   ///< largest relative error of the predicted reserved peak, from step 10 on
  double cpu_seconds = 0;   ///< of the child process
  double wait_seconds = 0;  ///< that the run waited
};

/// The run's connection to its look-ahead, the child process that dry-runs the next steps. It
/// submits steps, receives answers that come in time, compares them with measurements and adapts
/// the margin. If the run deviated from the prediction, run and child both empty their
/// allocator's cache before the next submitted step, after which their allocators are in the same
/// state again. If the child fails or is too slow, the run continues without it, and an event says
/// so. Belongs to the run's thread.
class LookAheadClient {
 public:
  using OnEvent = std::function<void(report::EventKind, const std::string& message)>;

  /// Starts the child process. Its failure is an event, not an error.
  LookAheadClient(LookAheadSettings settings, at::Device device, OnEvent on_event);

  /// Submits a step: shapes of its samples and the planned layout.
  void submit(int64_t step, const std::vector<data::SampleShape>& samples, const engine::StepLayout& layout);

  /// Waits at most 1 % of a step's duration. Returns `default_layout` without an answer.
  StepPlan await(int64_t step, const engine::StepLayout& default_layout, double step_seconds);

  /// Compares a step with its prediction. `measured_memory` has the step's peaks;
  /// `matches_forecast`: it ran as await() said.
  void compare(int64_t step, const StepPlan& plan, const memory::DeviceMemory& measured_memory, bool matches_forecast);

  /// Makes the next submitted step start with an empty cache.
  void request_release() { release_next_ = true; }

  /// Records a use of memory that the child cannot predict: the next submitted step starts with an
  /// empty cache, and nothing is compared until then.
  void mark_desynchronized();

  /// Records an out-of-memory error that was not predicted.
  void raise_margin() { margin_.raise(); }

  const LookAheadSummary& summary() const { return summary_; }

 private:
  bool is_unavailable();
  int64_t compute_limit_bytes() const;
  StepPlan handle_unfit(const planner::MemoryForecast& forecast);

  LookAheadSettings settings_;
  at::Device device_;
  OnEvent on_event_;
  std::unique_ptr<planner::LookAhead> look_ahead_;  // null once it is lost
  LookAheadMargin margin_;
  std::set<int64_t> release_steps_;  // submitted steps that start with an empty cache
  bool release_next_ = false;
  int64_t last_submitted_ = 0;
  int64_t first_comparable_step_ = 0;
  int64_t consecutive_late_steps_ = 0;
  LookAheadSummary summary_;
};

}  // namespace vlmtrain::train
