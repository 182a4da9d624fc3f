#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/index/tasks.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/loss/task_balance.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Throws UserError (kUsage) if training.global_batch_tokens, batch_scaling,
/// reference_batch_size and the other keys of the section contradict each other.
void check_batch_scaling(const engine::TrainingOptions& training);

/// Returns the factor of all learning rates of a run, for its batch size relative to
/// training.reference_batch_size.
double compute_reference_lr_factor(const engine::TrainingOptions& training);

/// Returns the additional factor of one step's learning rates, for its tokens relative to
/// training.global_batch_tokens.
double compute_step_lr_factor(const engine::TrainingOptions& training, int64_t tokens);

/// Returns a sentence for the log about the scaling rule and its effect; empty if there is nothing to report.
std::string describe_batch_scaling(const engine::TrainingOptions& training);

/// Parses training.task_weights, `name=1.5` each, into weights by task, scaled to a mean of 1 over
/// the samples. Throws UserError (kUsage) that lists all invalid entries.
std::vector<double> parse_task_weights(const std::vector<std::string>& entries, const data::Tasks& tasks);

/// Returns weights proportional to 1 / samples of the task, scaled to a mean of 1 over the samples.
std::vector<double> compute_inverse_size_weights(const data::Tasks& tasks);

/// Returns the task settings that a run starts with; empty for one task. Throws UserError (kUsage)
/// if the configuration does not fit the tasks.
engine::TaskSettings make_task_settings(const engine::BalanceOptions& options, const data::Tasks& tasks);

/// The tasks of a run and their weights in the loss, which GradNorm adapts. The weights of a step
/// depend on the results of all steps but the previous one, whose results have not reached the host
/// when the step starts on a GPU.
class TaskBalance {
 public:
  /// `masks`: see engine::ObjectiveSettings.
  TaskBalance(const engine::BalanceOptions& options, const data::Tasks& tasks,
              std::optional<engine::MaskLossWeights> masks = std::nullopt);

  /// Sets the task index of each sample of a step.
  void assign_tasks(std::vector<data::Sample>& samples) const;

  /// Returns the settings of the configuration. REQUIRES: no step was started.
  const engine::TaskSettings& initial_settings() const { return settings_; }
  /// Returns the constraint on micro-batch splits of a step; it does not depend on the weights.
  engine::SplitConstraint split_constraint(const std::vector<data::Sample>& samples) const;

  /// Returns the objective of `step`, counted from 1. REQUIRES: update() was called for all earlier
  /// steps but at most one.
  std::shared_ptr<const engine::Objective> make_objective(int64_t step, uint64_t step_seed);

  /// Records the results of the next step in order, and adds its tasks to `metrics`. `weights`:
  /// those that the step used.
  void update(const std::vector<engine::TaskResult>& results, const std::vector<double>& weights,
              report::StepMetrics& metrics);

  /// Returns the state for a checkpoint; null if nothing has to be saved.
  nlohmann::ordered_json state() const;
  /// Returns whether `state` belongs to these tasks, or there is no state.
  bool matches(const nlohmann::ordered_json& state) const;
  /// Restores `state`. Throws UserError (kBadData), with `source`, for an invalid one.
  void restore(const nlohmann::ordered_json& state, const std::string& source);

  /// Returns a sentence for the log; empty if there is nothing to report.
  std::string description() const;

 private:
  /// Results of a step that GradNorm has not used yet.
  struct Observation {
    int64_t step = 0;
    std::vector<engine::TaskResult> results;
    std::vector<double> weights;  // used by the step
  };

  data::Tasks tasks_;
  engine::TaskSettings settings_;
  std::optional<engine::MaskLossWeights> masks_;
  std::optional<engine::GradNorm> gradnorm_;
  std::deque<Observation> observations_;
};

}  // namespace vlmtrain::train
