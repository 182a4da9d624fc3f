#pragma once

#include <c10/core/Device.h>

#include <deque>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <vector>

#include "train/data_check/evaluation_set.h"
#include "train/planning/saved_plan.h"
#include "train/run/rank_group.h"
#include "train/step/look_ahead_client.h"
#include "train/step/oom_guard.h"
#include "train/step/step.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/rehearsal.h"
#include "vlmtrain/planner/virtual_card.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

/// The newest steps of a run that were done as planned, with what they took. Steps are timed one behind the other,
/// since on a GPU one is still at work while the next begins: only their sum says how long they took.
class StepTimes {
 public:
  /// `seconds`: from the step's beginning to the next one's, the wait for its data included.
  void record(const PlannedStep& step, const CompletedStep& completed, double seconds);

  /// What the steps took by what is predicted for them, which a child process rehearses on `virtual_gpu`; nothing after
  /// too few steps. Throws as planner::DryRunProcess.
  std::optional<double> compute_ratio(const planner::Job& job, const planner::StepConfig& step_config,
                                      const planner::VirtualGpu& virtual_gpu) const;

 private:
  struct TimedStep {
    std::vector<planner::SampleGroup> samples;
    double seconds = 0;
  };

  std::deque<TimedStep> steps_;
};

/// A plan could not be made for reasons that are not the run's: the rehearsal process was killed, the stand-ins for the
/// CUDA libraries are missing.
class PlanningError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where a run's cut of its steps comes from, unless training.micro_batch_size is a number.
enum class SplitSource {
  kPlanner,     ///< the planner's
  kCheckpoint,  ///< the run's checkpoint's; where that says none, equal micro-batches
};

/// The plan of a run on a GPU: made and written to plan.json before anything is allocated there, and compared with what
/// was measured at the end. Of several ranks each has its own, and the first one's is written.
class GpuRunPlan {
 public:
  /// Throws UserError (kDoesNotFit), which says what would, if the run does not fit, and PlanningError. Sets up the
  /// allocator as the plan needs it.
  /// `limits` are of the samples, for what the refusal says; `saved_plan` is what the run's checkpoint says of its cut.
  /// Where its recomputation does not fit any more, on a card with less room, the cut stays, and recomputation is
  /// chosen anew.
  GpuRunPlan(const Config& config, at::Device device, planner::Workload workload,
             std::vector<planner::SampleLimit> limits, const planner::Job& job, const RankGroup& ranks,
             std::filesystem::path run_folder, SplitSource split_source = SplitSource::kPlanner,
             const std::optional<SavedPlan>& saved_plan = {});

  const planner::StepConfig& step_config() const { return step_config_; }
  planner::StepPeaks peaks() const { return plan_.peaks(); }
  /// What the run's checkpoints keep of it; nothing where its steps are cut into micro-batches of as many samples.
  const std::optional<SavedPlan>& saved_plan() const { return saved_plan_; }
  /// How drawn steps are cut; nothing where the cut was kept, or all steps are cut alike.
  const std::optional<planner::SplitPlan>& split_plan() const { return plan_.split; }
  /// How the run evaluates `evaluation_set`, beside what its training holds: with no more than that takes at its peak
  /// where that is possible. Written to plan.json. Throws what make_plan throws.
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& evaluation_set);

  /// For a twin of the run.
  engine::Sharding sharding() const { return plan_.job.sharding; }
  LookAheadSettings look_ahead_settings() const;

  /// Logs what was measured over `steps` steps beside what was planned, and adds it to plan.json. `device_used_bytes`:
  /// most of the card that was in use at a step's end, by whomever.
  void report_measured(const memory::DeviceMemory& measured_memory, int64_t device_used_bytes, int64_t steps,
                       const LookAheadSummary* look_ahead) const;

  /// For later plans on this machine (train/past_runs.h): the context, which is what the process took of the card
  /// beside PyTorch's allocator, where no others can have taken it; the reserved peak; the time of steps. Says in the
  /// log what is in the way.
  void record_measurements(int64_t context_bytes, const memory::DeviceMemory& measured_memory,
                           const StepTimes& times) const;

 private:
  void write(const nlohmann::ordered_json& measurements = nullptr) const;

  at::Device device_;
  std::filesystem::path run_folder_;
  bool is_writer_;                          // the first rank does
  bool has_oversized_micro_batch_ = false;  // the micro-batch, with the largest samples: such steps are cut
  std::optional<PastRuns> past_runs_;       // of runs on this machine's card
  planner::Plan plan_;
  planner::StepConfig step_config_;
  std::optional<SavedPlan> saved_plan_;
  std::optional<planner::EvaluationPlan> evaluation_;
};

/// A run without a plan is to go on all the same: says why there is none, and sets up the allocator. The choices are
/// make_min_memory_config().
void continue_without_plan(const Config& config, at::Device device, const PlanningError& failure,
                           const RankGroup& ranks, const std::filesystem::path& run_folder);

}  // namespace vlmtrain::train
