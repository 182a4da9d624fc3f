#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "train/evaluation_set.h"
#include "train/kept_choices.h"
#include "train/run_ranks.h"
#include "vlmtrain/engine/tasks.h"
#include "vlmtrain/memory/host_budget.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/host_plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The memory of a run on the CPU: planned for what the host has free before the model is built, for each of its ranks
/// an equal part, written to plan.json,
/// and held to that. Of the thread that makes it, which has to be the one that trains.
class HostRun {
 public:
  /// `limits` are of the samples, for what a refusal says; `making_bytes` is Outlines::making_bytes; `kept` is what the
  /// run's checkpoint says, if there is one. Throws UserError (kDoesNotFit), which says what would
  /// fit. A plan that fails for reasons of its own does not stop a run: choices() are then cautious ones.
  HostRun(const Config& config, planner::Workload workload, std::vector<planner::SampleLimit> limits,
          int64_t making_bytes, const planner::Job& job, const RunRanks& ranks, std::filesystem::path run_folder,
          const std::optional<KeptChoices>& kept);

  /// What the run does and its checkpoints keep.
  const KeptChoices& fixed() const { return fixed_; }

  /// How drawn steps are cut; nothing where the cut was kept, or all steps are cut alike.
  const std::optional<planner::CutPlan>& cut() const { return cut_; }

  /// How the run evaluates `set`, beside what its training holds. Throws what make_host_plan throws.
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& set);
  /// What decoded samples of an evaluation may take that wait for their batch; 0: no bound.
  int64_t evaluation_bytes_ahead() const { return evaluation_bytes_ahead_; }

  /// Most that decoded samples may take which wait for their step.
  int64_t bytes_ahead() const { return bytes_ahead_; }

  /// While it lives, a tensor that would go over the limit is refused as out of memory.
  std::unique_ptr<memory::HostBudget::Limit> guard();
  /// The same of an evaluation, whose samples take memory beside those of the training.
  std::unique_ptr<memory::HostBudget::Limit> guard_of_evaluation();

  /// What the process takes at most, as planned; and what the plan leaves of its limit, 0 where there is no plan.
  int64_t planned_bytes() const { return plan_ ? plan_->total_bytes() : 0; }
  int64_t left_bytes() const;
  /// While it lives, tensors do not count towards the limit: copies of a checkpoint, for which left_bytes() is there.
  std::unique_ptr<memory::HostBudget::Pause> beside_steps() {
    return std::make_unique<memory::HostBudget::Pause>(budget_);
  }
  /// Copies took so much, beside what is planned.
  void note_copies(int64_t bytes) { copies_bytes_ = std::max(copies_bytes_, bytes); }

  /// Logs what was measured over `steps` steps beside what was planned, and adds it to plan.json.
  void compare(int64_t steps) const;

 private:
  void make_plan(const Config& config, planner::HostPlanRequest request, const planner::HostLimit& limit,
                 const std::optional<KeptChoices>& kept);
  void go_on_with(const planner::HostPlanRequest& asked, bool allow_splits, const KeptChoices& kept);
  void write(const nlohmann::ordered_json& measured = nullptr) const;

  std::filesystem::path run_folder_;
  bool writes_;
  std::optional<planner::HostPlan> plan_;  // nothing where none could be made
  KeptChoices fixed_;                      // the limit is HostLimit::tensor_bytes
  std::optional<planner::CutPlan> cut_;
  int64_t guard_bytes_ = 0;  // the limit, or what there is now if that is less
  int64_t bytes_ahead_ = 0;
  std::optional<planner::EvaluationPlan> evaluation_;
  int64_t evaluation_bytes_ahead_ = 0;
  int64_t evaluation_samples_bytes_ = 0;  // all that evaluated samples take until they are tensors of a batch
  int64_t copies_bytes_ = 0;              // of checkpoints, at most
  memory::HostBudget budget_;
};

}  // namespace vlmtrain::train
