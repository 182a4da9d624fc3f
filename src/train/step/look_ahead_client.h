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
#include "vlmtrain/data/shape.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/twin.h"
#include "vlmtrain/report/event.h"

namespace vlmtrain::train {

/// What a twin's limit is lowered by, beyond the margin of the plan: it rises where the twin was wrong and falls again
/// over steps that went as it foresaw. Two things make it up: what the last steps took more than was foreseen, and a
/// share of the limit for each time that memory ran out unforeseen, which halves after twenty good steps; after twice
/// as many with every further time, so that a run which keeps running out does not keep coming back for it.
class LookAheadMargin {
 public:
  explicit LookAheadMargin(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Memory ran out although nothing of the kind was foreseen.
  void raise();

  /// A step went as foreseen, and took so much more (or less, if negative) of the reserved memory.
  void record_success(int64_t excess_bytes);

  int64_t bytes() const;

 private:
  int64_t limit_bytes_;
  int64_t raised_bytes_ = 0;
  int64_t good_steps_ = 0;  // since it rose or fell
  int64_t good_steps_to_halve_ = 10;
  std::deque<int64_t> excess_bytes_;  // of the last steps
};

struct LookAheadSettings {
  planner::Job job;
  planner::StepConfig step_config;
  planner::VirtualGpu target;
  int64_t limit_bytes = 0;  ///< what the plan lets the allocator reserve
  /// The run is on a virtual card that takes no time: it waits for each answer instead of going on without.
  bool is_lockstep = false;
};

/// What the twin was worth over a run.
struct LookAheadSummary {
  int64_t steps = 0;        ///< foreseen
  int64_t split_steps = 0;  ///< of these, cut because they would not have fitted
  int64_t late_steps = 0;   ///< without an answer in time
  int64_t unfit_steps = 0;  ///< foreseen not to fit however they are cut
  double worst_error = 0;   ///< of the reserved peak, measured against foreseen, as a share; from step 10 on
  double cpu_seconds = 0;   ///< of the child, in all
  double wait_seconds = 0;  ///< by the run
};

/// A run's connection with its twin: announces steps, takes answers as long as they come in time, compares them with
/// what is measured and lowers the twin's limit accordingly. Where the run did something else than was foreseen, both
/// empty their allocator's cache before the next step that is announced, after which they are alike again. If the twin
/// fails or falls behind, the run goes on without it, and an event says so.
class LookAheadClient {
 public:
  using OnEvent = std::function<void(report::EventKind, const std::string& message)>;

  LookAheadClient(LookAheadSettings settings, at::Device device, OnEvent on_event);

  void submit(int64_t step, const std::vector<data::SampleShape>& samples, const engine::StepLayout& layout);

  /// Waits at most 1 % of a step's time. Without an answer: `default_layout`.
  StepPlan await(int64_t step, const engine::StepLayout& default_layout, double step_seconds);

  /// `measured_memory` are the peaks of the step; `matches_forecast`: it was done as await() said.
  void compare(int64_t step, const StepPlan& plan, const memory::DeviceMemory& measured_memory, bool matches_forecast);

  /// The next announced step is to begin with an empty cache.
  void request_release() { release_next_ = true; }

  /// The run did with its memory what the twin cannot know: the next announced step begins with an empty cache, and
  /// until then nothing is compared.
  void mark_desynchronized();

  /// Memory ran out although nothing of the kind was foreseen.
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
  std::set<int64_t> release_steps_;  // announced steps that begin with an empty cache
  bool release_next_ = false;
  int64_t last_submitted_ = 0;
  int64_t first_comparable_step_ = 0;  // step
  int64_t consecutive_late_steps_ = 0;
  LookAheadSummary summary_;
};

}  // namespace vlmtrain::train
