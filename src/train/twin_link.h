#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "train/step_plan.h"
#include "train/twin_margin.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/twin.h"
#include "vlmtrain/report/event.h"

namespace vlmtrain::train {

struct TwinSettings {
  planner::Job job;
  planner::Choices choices;
  planner::VirtualCard card;
  int64_t limit_bytes = 0;  ///< what the plan lets the allocator reserve
  /// The run is on a virtual card that takes no time: it waits for each answer instead of going on without.
  bool waits = false;
};

/// What the twin was worth over a run.
struct TwinSummary {
  int64_t steps = 0;           ///< foreseen
  int64_t cut_steps = 0;       ///< of these, cut because they would not have fitted
  int64_t late_steps = 0;      ///< without an answer in time
  int64_t hopeless_steps = 0;  ///< foreseen not to fit however they are cut
  double worst_error = 0;      ///< of the reserved peak, measured against foreseen, as a share; from step 10 on
  double cpu_seconds = 0;      ///< of the child, in all
  double waited_seconds = 0;   ///< by the run
};

/// A run's connection with its twin: announces steps, takes answers as long as they come in time, compares them with
/// what is measured and lowers the twin's limit accordingly. Where the run did something else than was foreseen, both
/// empty their allocator's cache before the next step that is announced, after which they are alike again. If the twin
/// fails or falls behind, the run goes on without it, and an event says so.
class TwinLink {
 public:
  using OnEvent = std::function<void(report::EventKind, const std::string& message)>;

  TwinLink(TwinSettings settings, at::Device device, OnEvent on_event);

  void announce(int64_t step, const std::vector<data::SampleShape>& samples, const engine::StepLayout& layout);

  /// Waits at most 1 % of a step's time. Without an answer: `planned`.
  StepPlan await(int64_t step, const engine::StepLayout& planned, double step_seconds);

  /// `measured` are the peaks of the step; `as_foreseen`: it was done as await() said.
  void compare(int64_t step, const StepPlan& foreseen, const memory::DeviceMemory& measured, bool as_foreseen);

  /// The next announced step is to begin with an empty cache.
  void ask_for_release() { release_next_ = true; }

  /// The run did with its memory what the twin cannot know: the next announced step begins with an empty cache, and
  /// until then nothing is compared.
  void diverge();

  /// Memory ran out although nothing of the kind was foreseen.
  void raise_margin() { margin_.raise(); }

  const TwinSummary& summary() const { return summary_; }

 private:
  bool is_lost();
  int64_t limit_now() const;
  StepPlan hopeless(const planner::Foresight& answer);

  TwinSettings settings_;
  at::Device device_;
  OnEvent on_event_;
  std::unique_ptr<planner::Twin> twin_;  // null once it is lost
  TwinMargin margin_;
  std::set<int64_t> releases_;  // announced steps that begin with an empty cache
  bool release_next_ = false;
  int64_t last_announced_ = 0;
  int64_t comparable_from_ = 0;  // step
  int64_t late_in_a_row_ = 0;
  TwinSummary summary_;
};

}  // namespace vlmtrain::train
