#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

class EvaluationSet;
class RankGroup;

/// The memory plan of a run on the CPU. It is made for the host memory that is free before the
/// model is built, with an equal part for each rank of the machine. It is written to plan.json and
/// enforced by limits on tensor allocations. Not thread-safe; used by the run's thread.
class HostRunPlan {
 public:
  /// Plans the run and writes plan.json into `run_folder`. `limits`: settings that suggestions may
  /// name (make_sample_limits). `decode_bytes`: SampleIndex::decode_bytes. `saved_plan`: the
  /// checkpoint's plan, whose choices are kept. Throws UserError (kDoesNotFit), with suggestions,
  /// if the run does not fit. After any other error the run continues with a configuration of
  /// minimum memory.
  HostRunPlan(const Config& config, planner::Workload workload, std::vector<planner::SampleLimit> limits,
              int64_t decode_bytes, const planner::Job& job, const RankGroup& ranks, std::filesystem::path run_folder,
              const std::optional<SavedPlan>& saved_plan);

  /// Returns the step configuration and limit of the run, to store in checkpoints.
  const SavedPlan& saved_plan() const { return saved_plan_; }

  /// Returns statistics of the planned splits of sampled steps; nullopt if the split comes from a
  /// checkpoint or is the same for all steps.
  const std::optional<planner::SplitPlan>& micro_batch_split_plan() const { return split_plan_; }

  /// Plans the batches of evaluations on `evaluation_set`, during which the training state stays in
  /// memory. Returns batches of one sample if the run has no plan. Throws the errors of
  /// planner::plan_evaluation().
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& evaluation_set);
  /// Returns the maximum bytes of decoded evaluation samples that wait for their batch; 0: no
  /// limit.
  int64_t evaluation_prefetch_bytes() const { return evaluation_prefetch_bytes_; }

  /// Returns the maximum bytes of decoded training samples that wait for their step.
  int64_t prefetch_bytes() const { return prefetch_bytes_; }

  /// Returns a guard for training steps. While it exists, an allocation of a tensor that exceeds
  /// the limit fails as out of memory. Must not outlive this object.
  std::unique_ptr<memory::HostMemoryBudget::ScopedLimit> make_training_allocation_limit();
  /// Returns such a guard for evaluations. Its limit is lower by the memory of decoded evaluation
  /// samples.
  std::unique_ptr<memory::HostMemoryBudget::ScopedLimit> make_evaluation_allocation_limit();

  /// Returns the planned maximum of the process in bytes; 0 if planning failed.
  int64_t planned_bytes() const { return plan_ ? plan_->training_bytes() : 0; }
  /// Returns the part of the limit that the plan does not use, in bytes; 0 if planning failed.
  int64_t compute_unused_limit_bytes() const;
  /// Returns a guard. While it exists, new tensors do not count towards the limit. For the copies
  /// of a checkpoint, which take compute_unused_limit_bytes() instead. Must not outlive this
  /// object.
  std::unique_ptr<memory::HostMemoryBudget::ScopedPause> pause_budget_accounting() {
    return std::make_unique<memory::HostMemoryBudget::ScopedPause>(budget_);
  }
  /// Records the bytes of a checkpoint's copies, which the plan does not include.
  void record_checkpoint_copy_bytes(int64_t bytes) { checkpoint_copy_bytes_ = std::max(checkpoint_copy_bytes_, bytes); }

  /// Logs the measured memory next to the planned memory, adds it to plan.json, and records it for
  /// later runs (train/past_runs.h). `steps`: completed steps of the run.
  void report_measurements(int64_t steps) const;

 private:
  void make_plan(const Config& config, planner::PlanRequest request, const planner::MemoryLimit& limit,
                 const std::optional<SavedPlan>& saved_plan);
  void apply_saved_plan(const planner::PlanRequest& request, bool allow_splits, const SavedPlan& saved_plan);
  void write(const nlohmann::ordered_json& measurements = nullptr) const;

  std::filesystem::path run_folder_;
  bool is_main_process_;               // rank 0
  std::optional<planner::Plan> plan_;  // nullopt if planning failed
  SavedPlan saved_plan_;               // its limit_bytes is MemoryLimit::limit_bytes
  std::optional<planner::SplitPlan> split_plan_;
  int64_t enforced_limit_bytes_ = 0;  // limit on tensors, lowered to the available memory
  int64_t prefetch_bytes_ = 0;
  int64_t evaluation_prefetch_bytes_ = 0;
  int64_t evaluation_samples_bytes_ = 0;  // bytes of decoded evaluation samples until they are tensors of a batch
  int64_t checkpoint_copy_bytes_ = 0;     // largest copies of a checkpoint
  memory::HostMemoryBudget budget_;
};

/// Removes the settings of host memory from a job on the CPU, so that its plan ignores them, and warns about
/// those that have no effect. Returns the settings that the run uses: none. If the environment variable
/// VLMTRAIN_OFFLOAD_ON_CPU is set, returns the removed ones: ordinary memory is then used like that of a host.
engine::HostMemorySettings disable_offload(const planner::MemoryOptions& options, planner::Job& job);

}  // namespace vlmtrain::train
