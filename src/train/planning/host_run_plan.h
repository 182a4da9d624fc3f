#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "train/data_check/evaluation_set.h"
#include "train/planning/saved_plan.h"
#include "train/run/rank_group.h"
#include "vlmtrain/engine/loss/task_balance.h"
#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/planner/cpu_plan.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The memory plan of a run on the CPU. It is made for the host memory that is free before the
/// model is built, an equal part for each rank, written to plan.json, and enforced. Belongs to the
/// training thread.
class HostRunPlan {
 public:
  /// `limits` are the settings that advice may name; `decode_bytes` is SampleIndex::decode_bytes;
  /// `saved_plan` is the checkpoint's plan. Throws UserError (kDoesNotFit), with advice. Other
  /// failures to plan do not stop the run: it uses the least memory then.
  HostRunPlan(const Config& config, planner::Workload workload, std::vector<planner::SampleLimit> limits,
              int64_t decode_bytes, const planner::Job& job, const RankGroup& ranks, std::filesystem::path run_folder,
              const std::optional<SavedPlan>& saved_plan);

  /// Returns the choices of the run, which its checkpoints keep.
  const SavedPlan& saved_plan() const { return saved_plan_; }

  /// Returns how drawn steps are split; nullopt if the split comes from a checkpoint or is the
  /// same for all steps.
  const std::optional<planner::SplitPlan>& split_plan() const { return split_plan_; }

  /// Plans the evaluation of `evaluation_set` while the training state stays in memory. Throws as
  /// make_cpu_plan does.
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& evaluation_set);
  /// Returns the most bytes of decoded evaluation samples that wait for their batch; 0: no limit.
  int64_t evaluation_prefetch_bytes() const { return evaluation_prefetch_bytes_; }

  /// Returns the most bytes of decoded samples that wait for their step.
  int64_t prefetch_bytes() const { return prefetch_bytes_; }

  /// Returns a guard: while it lives, a tensor above the limit is refused as out of memory.
  std::unique_ptr<memory::HostBudget::Limit> make_allocation_limit();
  /// Returns the guard for evaluations, whose samples take memory in addition to the training
  /// state.
  std::unique_ptr<memory::HostBudget::Limit> make_evaluation_limit();

  /// Planned maximum of the process in bytes, and the bytes that the plan leaves of its limit; 0
  /// without a plan.
  int64_t planned_bytes() const { return plan_ ? plan_->total_bytes() : 0; }
  int64_t remaining_bytes() const;
  /// Returns a guard: while it lives, tensors do not count towards the limit. Meant for copies of a
  /// checkpoint, which remaining_bytes() covers.
  std::unique_ptr<memory::HostBudget::Pause> pause_accounting() {
    return std::make_unique<memory::HostBudget::Pause>(budget_);
  }
  /// Records the bytes of copies, which the plan does not include.
  void record_copies(int64_t bytes) { copy_bytes_ = std::max(copy_bytes_, bytes); }

  /// Logs the measurements of `steps` steps next to the plan and adds them to plan.json.
  void report_measured(int64_t steps) const;

 private:
  void make_plan(const Config& config, planner::CpuPlanRequest request, const planner::CpuMemoryLimit& limit,
                 const std::optional<SavedPlan>& saved_plan);
  void apply_saved_plan(const planner::CpuPlanRequest& request, bool allow_splits, const SavedPlan& saved_plan);
  void write(const nlohmann::ordered_json& measurements = nullptr) const;

  std::filesystem::path run_folder_;
  bool is_writer_;
  std::optional<planner::CpuPlan> plan_;  // nullopt if planning failed
  SavedPlan saved_plan_;                  // limit_bytes is CpuMemoryLimit::tensor_bytes
  std::optional<planner::SplitPlan> split_plan_;
  int64_t enforced_limit_bytes_ = 0;  // the limit, or the memory that is available now if that is less
  int64_t prefetch_bytes_ = 0;
  std::optional<planner::EvaluationPlan> evaluation_;
  int64_t evaluation_prefetch_bytes_ = 0;
  int64_t evaluation_samples_bytes_ = 0;  // bytes of decoded evaluation samples until they are tensors of a batch
  int64_t copy_bytes_ = 0;                // largest copies of a checkpoint
  memory::HostBudget budget_;
};

}  // namespace vlmtrain::train
