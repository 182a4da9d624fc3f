#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/loss/task_balance.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Throws UserError (kUsage) if training.global_batch_tokens, training.batch_scaling,
/// training.reference_batch_size and training.max_steps contradict each other.
void check_batch_scaling(const engine::TrainingOptions& training);

/// Returns the factor of all learning rates of a run, which training.batch_scaling derives from
/// global_batch_size / reference_batch_size; 1 without a reference.
double compute_reference_lr_factor(const engine::TrainingOptions& training);

/// Returns the additional factor of the learning rates of a step with `tokens` tokens, which
/// training.batch_scaling derives from tokens / global_batch_tokens; 1 if that is not set.
double compute_step_lr_factor(const engine::TrainingOptions& training, int64_t tokens);

/// Returns a sentence for the log about the scaling rule and its effect; empty if there is nothing
/// to report.
std::string describe_batch_scaling(const engine::TrainingOptions& training);

/// Parses training.task_weights, entries such as caption=1.5, into one weight per task in the order
/// of `tasks`, scaled to a mean of 1 over the samples. Throws UserError (kUsage), with all
/// problems, for invalid entries and if a task has no weight.
std::vector<double> parse_task_weights(const std::vector<std::string>& entries, const data::TaskTable& tasks);

/// Returns one weight per task, proportional to 1 / number of its samples, scaled to a mean of 1
/// over the samples.
std::vector<double> compute_inverse_size_weights(const data::TaskTable& tasks);

/// Returns the initial task settings of a run; without weights if tasks are not weighted. Throws
/// UserError (kUsage) if the configuration does not fit the tasks.
engine::TaskSettings make_task_settings(const engine::BatchAndTaskOptions& options, const data::TaskTable& tasks);

/// The tasks of a run and their weights in the loss, which GradNorm adapts. The weights of a step
/// depend on the results of all earlier steps except the previous one. On a GPU, the results of the
/// previous step have not reached the host when a step starts. Not thread-safe.
class TaskBalancer {
 public:
  /// `masks`: weights of the mask losses; nullopt if the model predicts no masks. Throws as
  /// make_task_settings().
  TaskBalancer(const engine::BatchAndTaskOptions& options, const data::TaskTable& tasks,
               std::optional<engine::TextAndMaskLossWeights> masks = std::nullopt);

  /// Sets the task index of each sample of a step; does nothing if all samples have one task.
  void assign_tasks(std::vector<data::Sample>& samples) const;

  /// Returns the settings before the first step. REQUIRES: make_objective() was not called.
  const engine::TaskSettings& initial_settings() const { return settings_; }
  /// Returns the constraint on micro-batch splits of a step; it does not depend on the weights.
  engine::SplitConstraint make_split_constraint(const std::vector<data::Sample>& samples) const;

  /// Returns the objective of `step`, counted from 1. `step_seed`: seed of the step's random
  /// stream. REQUIRES: update() was called for all earlier steps, except possibly the previous one.
  std::shared_ptr<const engine::Objective> make_objective(int64_t step, uint64_t step_seed);

  /// Records the results of a step by task, and adds them to `metrics`, whose `step` and `skipped`
  /// must be set. `weights`: the task weights of the step; empty if all are 1. Called in the order
  /// of steps.
  void update(const std::vector<engine::TaskResult>& results, const std::vector<double>& weights,
              report::StepMetrics& metrics);

  /// Returns the state for a checkpoint; null if nothing has to be saved.
  nlohmann::ordered_json state() const;
  /// Returns whether `state` has the same task names. True if there is no state to restore, because
  /// GradNorm is not used.
  bool has_same_tasks(const nlohmann::ordered_json& state) const;
  /// Restores the output of state(); does nothing without GradNorm. Throws UserError (kBadData),
  /// with `source`, for an invalid state.
  void restore(const nlohmann::ordered_json& state, const std::string& source);

  /// Returns a sentence for the log; empty if there is nothing to report.
  std::string describe() const;

 private:
  /// The results of a step that GradNorm has not used yet.
  struct GradNormObservation {
    int64_t step = 0;
    std::vector<engine::TaskResult> results;
    std::vector<double> weights;  // used by the step
  };

  data::TaskTable tasks_;
  engine::TaskSettings settings_;
  std::optional<engine::TextAndMaskLossWeights> masks_;
  std::optional<engine::GradNorm> gradnorm_;
  std::deque<GradNormObservation> gradnorm_observations_;
};

}  // namespace vlmtrain::train
