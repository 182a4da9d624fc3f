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

/// The margin that is subtracted from the look-ahead's memory limit, in addition to the plan's
/// margin. It is the sum of two parts: the largest excess of measured over predicted memory in
/// recent steps, and an amount that grows with each out-of-memory error that was not predicted.
/// That amount halves after twenty successful steps. Each further error doubles this number of
/// steps, so that a run does not fail repeatedly at the same limit.
class LookAheadMemoryMargin {
 public:
  /// `limit_bytes`: limit of the plan, of which the margin is at most a quarter plus the excess.
  explicit LookAheadMemoryMargin(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Increases the margin after an out-of-memory error that was not predicted.
  void increase();

  /// Records a step that succeeded with the predicted layout. `excess_bytes`: measured minus
  /// predicted peak of reserved memory; may be negative.
  void record_success(int64_t excess_bytes);

  /// Returns the margin in bytes.
  int64_t bytes() const;

 private:
  int64_t limit_bytes_;
  int64_t error_margin_bytes_ = 0;            // part that grows with errors
  int64_t num_successful_steps_ = 0;          // since the last change of the margin
  int64_t steps_before_margin_halving_ = 10;  // doubled by the first increase()
  std::deque<int64_t> excess_bytes_;          // of the newest steps
};

/// The settings of LookAheadClient: the run's plan.
struct LookAheadSettings {
  planner::Job job;
  planner::StepConfig step_config;
  planner::VirtualGpu target;  ///< a virtual GPU with the properties of the run's GPU
  int64_t limit_bytes = 0;     ///< maximum bytes that the allocator may reserve according to the plan
  /// Whether the run waits for each answer. True on a virtual GPU, whose steps take no time.
  bool waits_for_answers = false;
};

/// Statistics of the look-ahead of a run.
struct LookAheadSummary {
  int64_t num_predicted_steps = 0;  ///< steps with an answer in time; includes oversized steps
  int64_t num_split_steps = 0;      ///< predicted steps that were split because they would not have fitted
  int64_t num_late_steps = 0;       ///< steps without an answer in time
  int64_t num_oversized_steps = 0;  ///< steps predicted not to fit with any split
  double max_relative_error = 0;    ///< largest relative error of the predicted reserved peak, from step 10 on
  double cpu_seconds = 0;           ///< CPU time of the child process
  double wait_seconds = 0;          ///< time that the run waited for answers
};

/// The run's connection to its look-ahead, the child process that dry-runs the next steps. It
/// submits steps, receives the answers that arrive in time, compares them with measurements, and
/// adapts the margin. If a step deviates from its prediction, the run and the child both empty
/// their allocator's cache before the next submitted step, so that their allocators are in the same
/// state again. If the child fails or is too slow, the run continues without it, and an event
/// reports this. Not thread-safe; used by the run's thread.
class LookAheadClient {
 public:
  /// Receives events, on the run's thread.
  using EventHandler = std::function<void(report::EventKind, const std::string& message)>;

  /// Starts the child process. Raises an event if that fails.
  LookAheadClient(LookAheadSettings settings, at::Device device, EventHandler on_event);

  /// Submits `step` for a dry run. `samples`: shapes of its samples. `layout`: its layout by the
  /// run's plan. Called in the order of steps.
  void submit(int64_t step, const std::vector<data::SampleShape>& samples, const engine::StepLayout& layout);

  /// Returns the plan of a submitted step. Waits for the answer for at most 1 % of `step_seconds`,
  /// the duration of a recent step. Without an answer, the plan has `default_layout` and no
  /// predicted peaks.
  StepPlan wait_for_plan(int64_t step, const engine::StepLayout& default_layout, double step_seconds);

  /// Compares a completed step with its prediction. `plan`: the result of wait_for_plan().
  /// `measured_memory`: has the step's peaks. `matches_forecast`: the step ran with the layout of
  /// `plan`, without a retry.
  void compare_with_measurement(int64_t step, const StepPlan& plan, const memory::DeviceMemoryStats& measured_memory,
                                bool matches_forecast);

  /// Lets run and child empty their caches before the next submitted step.
  void request_cache_release() { releases_cache_next_step_ = true; }

  /// Records that the allocators of run and child differ. The next submitted step starts with an
  /// empty cache; earlier steps are not compared.
  void mark_desynchronized();

  /// Records an out-of-memory error that was not predicted.
  void increase_margin() { margin_.increase(); }

  const LookAheadSummary& summary() const { return summary_; }

 private:
  /// Returns whether there is no child, and raises an event if it has just ended.
  bool handle_child_end();
  int64_t compute_limit_bytes() const;
  StepPlan handle_oversized_step(const planner::MemoryForecast& forecast);

  LookAheadSettings settings_;
  at::Device device_;
  EventHandler on_event_;
  std::unique_ptr<planner::LookAheadProcess> look_ahead_;  // null after it failed
  LookAheadMemoryMargin margin_;
  std::set<int64_t> cache_release_steps_;  // submitted steps that start with an empty cache
  bool releases_cache_next_step_ = false;
  int64_t last_submitted_step_ = 0;
  int64_t first_comparable_step_ = 0;
  int64_t num_consecutive_late_steps_ = 0;
  LookAheadSummary summary_;
};

}  // namespace vlmtrain::train
