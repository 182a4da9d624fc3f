#pragma once

#include <c10/core/Device.h>

#include <deque>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <vector>

#include "train/data_check/run_records.h"
#include "train/run/rank_group.h"
#include "train/step/look_ahead_client.h"
#include "train/step/oom_guard.h"
#include "train/step/step.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/virtual_gpu.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

/// A recorder of the durations of the newest consecutive steps that ran as planned. Only their sum
/// is meaningful, because on a GPU a step still runs when the next one starts on the host.
class StepTimeRecorder {
 public:
  /// Records a step. `seconds`: time from its start to the start of the next one, including the
  /// wait for data. A step that was repeated or split discards all recorded steps.
  void record_step(const PlannedStep& step, const CompletedStep& completed_step, double seconds);

  /// Returns the measured seconds divided by the predicted seconds. Predicts by dry runs on
  /// `virtual_gpu` in a child process. Returns nullopt if fewer than 6 steps are recorded. Throws
  /// the errors of planner::DryRunProcess.
  std::optional<double> compute_measured_to_predicted_ratio(const planner::Job& job,
                                                            const planner::StepConfig& step_config,
                                                            const planner::VirtualGpu& virtual_gpu) const;

 private:
  struct TimedStep {
    std::vector<planner::SampleGroup> samples;
    double seconds = 0;
  };

  std::deque<TimedStep> timed_steps_;
};

/// An error of planning that the run does not cause: the process of the dry runs was killed, or the
/// virtual GPU's libraries are missing. The run continues without a plan.
class PlanningError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The source of a run's micro-batch split, unless training.micro_batch_size is a number.
enum class MicroBatchSplitSource {
  kPlanner,     ///< the planner chooses it
  kCheckpoint,  ///< the checkpoint's; equal micro-batches if the checkpoint has none
};

/// The plan of a run on a GPU. It is written to plan.json before anything is allocated on the GPU,
/// and compared with measurements at the end. Each rank has its own plan; rank 0 writes its plan.
/// Not thread-safe.
class GpuRunPlan {
 public:
  /// Plans the run, writes plan.json into `run_folder`, and configures the allocator of `device`.
  /// `limits`: settings that suggestions may name (make_sample_limits). `saved_plan`: the
  /// checkpoint's plan, whose split is kept; its recomputation is kept if it fits on this GPU.
  /// Throws UserError (kDoesNotFit), with suggestions, if the run does not fit, and PlanningError.
  GpuRunPlan(const Config& config, at::Device device, planner::Workload workload,
             std::vector<planner::SampleLimit> limits, const planner::Job& job, const RankGroup& ranks,
             std::filesystem::path run_folder, MicroBatchSplitSource split_source = MicroBatchSplitSource::kPlanner,
             const std::optional<SavedPlan>& saved_plan = {});

  const planner::StepConfig& step_config() const { return step_config_; }
  /// Returns the planned peaks of device memory in bytes.
  planner::StepPeaks peaks() const { return plan_.peaks(); }
  /// Returns the plan to store in checkpoints; nullopt if steps are not split by memory.
  const std::optional<SavedPlan>& saved_plan() const { return saved_plan_; }
  /// Returns statistics of the planned splits of sampled steps; nullopt if the split comes from a
  /// checkpoint or is the same for all steps.
  const std::optional<planner::SplitPlan>& micro_batch_split_plan() const { return plan_.split; }
  /// Plans the batches of evaluations on `evaluation_set`, during which the training state stays
  /// allocated. Keeps their peak below that of training where possible. Adds the plan to plan.json.
  /// Throws the errors of planner::plan_evaluation().
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& evaluation_set);

  /// Returns the job with the planner's choices: sharding and what is in host memory.
  const planner::Job& job() const { return plan_.job; }
  /// Returns the settings of the run's look-ahead.
  LookAheadSettings make_look_ahead_settings() const;

  /// Logs the measured memory next to the planned memory, and adds it to plan.json. `steps`:
  /// completed steps of the run. `device_used_bytes`: maximum bytes of the GPU that all processes
  /// used at the end of a step. `look_ahead`: null if the run had none.
  void report_measurements(const memory::DeviceMemoryStats& measured_memory, int64_t device_used_bytes, int64_t steps,
                           const LookAheadSummary* look_ahead) const;

  /// Records measurements for later plans on this machine (train/past_runs.h): the reserved peak,
  /// the step times, and `context_bytes`, the process's GPU memory outside PyTorch's allocator.
  /// Ignores context_bytes if they may include memory of other processes. Dry-runs steps, which
  /// takes seconds. Logs failures; throws nothing.
  void record_measurements(int64_t context_bytes, const memory::DeviceMemoryStats& measured_memory,
                           const StepTimeRecorder& times) const;

 private:
  void write(const nlohmann::ordered_json& measurements = nullptr) const;

  at::Device device_;
  std::filesystem::path run_folder_;
  bool is_main_process_;  // rank 0
  // The configured micro-batch does not fit with the largest samples; their steps are split.
  bool has_oversized_micro_batch_ = false;
  std::optional<PastRunMeasurements> past_runs_;  // of this GPU
  planner::Plan plan_;
  planner::StepConfig step_config_;
  std::optional<SavedPlan> saved_plan_;
};

/// Warns that a run has no plan because of `failure`, and configures the allocator of `device`.
/// Removes the plan.json of an earlier start. The run then uses make_min_memory_step_config().
void prepare_run_without_plan(const Config& config, at::Device device, const PlanningError& failure,
                              const RankGroup& ranks, const std::filesystem::path& run_folder);

}  // namespace vlmtrain::train
