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
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/virtual_gpu.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

/// Durations of the newest steps that ran as planned. Consecutive steps are timed together, because
/// on a GPU one step still runs when the next starts: only their sum is meaningful.
class StepTimes {
 public:
  /// Records a step. `seconds`: from its start to the start of the next, with the wait for data.
  void record(const PlannedStep& step, const CompletedStep& completed, double seconds);

  /// Returns measured divided by predicted seconds; the prediction comes from dry runs on
  /// `virtual_gpu` in a child process. Returns nothing after too few steps. Throws as
  /// planner::DryRunProcess.
  std::optional<double> compute_ratio(const planner::Job& job, const planner::StepConfig& step_config,
                                      const planner::VirtualGpu& virtual_gpu) const;

 private:
  struct TimedStep {
    std::vector<planner::SampleGroup> samples;
    double seconds = 0;
  };

  std::deque<TimedStep> steps_;
};

/// A failure to plan that the run does not cause: the dry run process was killed, or the virtual
/// GPU's libraries are missing.
class PlanningError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The source of a run's micro-batch split, unless training.micro_batch_size is a number.
enum class SplitSource {
  kPlanner,     ///< the planner
  kCheckpoint,  ///< the run's checkpoint; if that has none, equal micro-batches
};

/// The plan of a run on a GPU. It is written to plan.json before anything is allocated there, and
/// compared with measurements at the end. Each rank has its own plan; rank 0 writes.
class GpuRunPlan {
 public:
  /// Throws UserError (kDoesNotFit), with advice, if the run does not fit, and PlanningError.
  /// Configures the allocator for the plan. `limits` are the settings that the advice may name.
  /// `saved_plan` is the checkpoint's plan: its split stays; its recomputation is chosen again
  /// if it does not fit on a smaller GPU.
  GpuRunPlan(const Config& config, at::Device device, planner::Workload workload,
             std::vector<planner::SampleLimit> limits, const planner::Job& job, const RankGroup& ranks,
             std::filesystem::path run_folder, SplitSource split_source = SplitSource::kPlanner,
             const std::optional<SavedPlan>& saved_plan = {});

  const planner::StepConfig& step_config() const { return step_config_; }
  planner::StepPeaks peaks() const { return plan_.peaks(); }
  /// Returns what checkpoints keep of the plan; nullopt if all micro-batches have the same
  /// number of samples.
  const std::optional<SavedPlan>& saved_plan() const { return saved_plan_; }
  /// Returns how drawn steps are split; nullopt if the split comes from a checkpoint or is the
  /// same for all steps.
  const std::optional<planner::SplitPlan>& split_plan() const { return plan_.split; }
  /// Plans the evaluation of `evaluation_set` while the training state stays allocated, with at
  /// most the peak of training where possible. Adds it to plan.json. Throws as make_plan does.
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& evaluation_set);

  /// For the look-ahead of the run.
  engine::Sharding sharding() const { return plan_.job.sharding; }
  LookAheadSettings look_ahead_settings() const;

  /// Logs the measurements of `steps` steps next to the plan and adds them to plan.json.
  /// `device_used_bytes`: most bytes of the GPU in use at the end of a step, by all processes.
  void report_measured(const memory::DeviceMemory& measured_memory, int64_t device_used_bytes, int64_t steps,
                       const LookAheadSummary* look_ahead) const;

  /// Records measurements for later plans on this machine (train/past_runs.h): the reserved peak,
  /// step times, and the context, which is the process's GPU memory outside PyTorch's allocator,
  /// unless other processes may have taken it. Logs failures.
  void record_measurements(int64_t context_bytes, const memory::DeviceMemory& measured_memory,
                           const StepTimes& times) const;

 private:
  void write(const nlohmann::ordered_json& measurements = nullptr) const;

  at::Device device_;
  std::filesystem::path run_folder_;
  bool is_writer_;  // rank 0
  bool has_oversized_micro_batch_ =
      false;  // the configured micro-batch does not fit with the largest samples, so that their steps are split
  std::optional<PastRuns> past_runs_;  // of this GPU
  planner::Plan plan_;
  planner::StepConfig step_config_;
  std::optional<SavedPlan> saved_plan_;
  std::optional<planner::EvaluationPlan> evaluation_;
};

/// Logs why a run has no plan, and configures the allocator for make_min_memory_config().
void continue_without_plan(const Config& config, at::Device device, const PlanningError& failure,
                           const RankGroup& ranks, const std::filesystem::path& run_folder);

}  // namespace vlmtrain::train
