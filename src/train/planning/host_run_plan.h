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
#include "vlmtrain/engine/tasks.h"
#include "vlmtrain/memory/host_budget.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/host_plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The memory of a run on the CPU: planned for what the host has free before the model is built, for each of its ranks
/// an equal part, written to plan.json,
/// and held to that. Of the thread that makes it, which has to be the one that trains.
class HostRunPlan {
 public:
  /// `limits` are of the samples, for what a refusal says; `decode_bytes` is Outlines::decode_bytes; `saved_plan` is
  /// what the run's checkpoint says, if there is one. Throws UserError (kDoesNotFit), which says what would fit. A plan
  /// that fails for reasons of its own does not stop a run: step_config() are then cautious ones.
  HostRunPlan(const Config& config, planner::Workload workload, std::vector<planner::SampleLimit> limits,
              int64_t decode_bytes, const planner::Job& job, const RankGroup& ranks, std::filesystem::path run_folder,
              const std::optional<SavedPlan>& saved_plan);

  /// What the run does and its checkpoints keep.
  const SavedPlan& saved_plan() const { return saved_plan_; }

  /// How drawn steps are cut; nothing where the cut was kept, or all steps are cut alike.
  const std::optional<planner::SplitPlan>& split_plan() const { return split_plan_; }

  /// How the run evaluates `evaluation_set`, beside what its training holds. Throws what make_cpu_plan throws.
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& evaluation_set);
  /// What decoded samples of an evaluation may take that wait for their batch; 0: no bound.
  int64_t evaluation_prefetch_bytes() const { return evaluation_prefetch_bytes_; }

  /// Most that decoded samples may take which wait for their step.
  int64_t prefetch_bytes() const { return prefetch_bytes_; }

  /// While it lives, a tensor that would go over the limit is refused as out of memory.
  std::unique_ptr<memory::HostBudget::Limit> make_allocation_limit();
  /// The same of an evaluation, whose samples take memory beside those of the training.
  std::unique_ptr<memory::HostBudget::Limit> make_evaluation_limit();

  /// What the process takes at most, as planned; and what the plan leaves of its limit, 0 where there is no plan.
  int64_t planned_bytes() const { return plan_ ? plan_->total_bytes() : 0; }
  int64_t remaining_bytes() const;
  /// While it lives, tensors do not count towards the limit: copies of a checkpoint, for which remaining_bytes() is
  /// there.
  std::unique_ptr<memory::HostBudget::Pause> pause_accounting() {
    return std::make_unique<memory::HostBudget::Pause>(budget_);
  }
  /// Copies took so much, beside what is planned.
  void record_copies(int64_t bytes) { copy_bytes_ = std::max(copy_bytes_, bytes); }

  /// Logs what was measured over `steps` steps beside what was planned, and adds it to plan.json.
  void report_measured(int64_t steps) const;

 private:
  void make_plan(const Config& config, planner::CpuPlanRequest request, const planner::CpuMemoryLimit& limit,
                 const std::optional<SavedPlan>& saved_plan);
  void apply_saved_plan(const planner::CpuPlanRequest& request, bool allow_splits, const SavedPlan& saved_plan);
  void write(const nlohmann::ordered_json& measurements = nullptr) const;

  std::filesystem::path run_folder_;
  bool is_writer_;
  std::optional<planner::CpuPlan> plan_;  // nothing where none could be made
  SavedPlan saved_plan_;                  // the limit is CpuMemoryLimit::tensor_bytes
  std::optional<planner::SplitPlan> split_plan_;
  int64_t enforced_limit_bytes_ = 0;  // the limit, or what there is now if that is less
  int64_t prefetch_bytes_ = 0;
  std::optional<planner::EvaluationPlan> evaluation_;
  int64_t evaluation_prefetch_bytes_ = 0;
  int64_t evaluation_samples_bytes_ = 0;  // all that evaluated samples take until they are tensors of a batch
  int64_t copy_bytes_ = 0;                // of checkpoints, at most
  memory::HostBudget budget_;
};

}  // namespace vlmtrain::train
