#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/tasks.h"
#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/engine/gradnorm.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Throws UserError (kUsage) where training.global_batch_tokens, batch_scaling, reference_batch_size and the rest of
/// the section do not go together.
void check_batch_scaling(const engine::TrainingOptions& training);

/// What all learning rates of a run are multiplied by, for its batch size against the reference's.
double compute_reference_lr_factor(const engine::TrainingOptions& training);

/// What the rates of one step are multiplied by besides, for its tokens against training.global_batch_tokens.
double compute_step_lr_factor(const engine::TrainingOptions& training, int64_t tokens);

/// A sentence for the log that says which rule holds and what comes of it; empty where none does.
std::string describe_batch_scaling(const engine::TrainingOptions& training);

/// The weights that training.task_weights gives, `name=1.5`, by task, scaled so that their mean over the samples is 1.
/// Throws UserError (kUsage) that lists all that is wrong with the entries.
std::vector<double> parse_task_weights(const std::vector<std::string>& entries, const data::Tasks& tasks);

/// By 1 / samples, scaled alike.
std::vector<double> compute_inverse_size_weights(const data::Tasks& tasks);

/// What a run makes of the tasks of its samples, as the configuration asks; with one task nothing. Weights are those
/// that a run starts with. Throws UserError (kUsage) where the configuration and the tasks do not go together.
engine::TaskSettings make_task_settings(const engine::BalanceOptions& options, const data::Tasks& tasks);

/// The tasks of a run and their weights in the loss, which GradNorm moves: those of a step follow from the numbers of
/// all steps but the one before it, whose numbers have not reached the host when it begins on a GPU.
class TaskBalance {
 public:
  /// `masks`: as engine::ObjectiveSettings's.
  TaskBalance(const engine::BalanceOptions& options, const data::Tasks& tasks,
              std::optional<engine::MaskLossWeights> masks = std::nullopt);

  /// Numbers the samples of a step.
  void assign_tasks(std::vector<data::Sample>& samples) const;

  /// As the configuration has them. REQUIRES: no step was begun.
  const engine::TaskSettings& initial_settings() const { return settings_; }
  /// What cuts of a step follow from: weights do not matter for it.
  engine::SplitConstraint split_constraint(const std::vector<data::Sample>& samples) const;

  /// Of a step, from 1. REQUIRES: update() has been told of all but at most one step before it.
  std::shared_ptr<const engine::Objective> make_objective(int64_t step, uint64_t step_seed);

  /// Takes note of a step that is done, in order, and enters its tasks into `metrics`. `weights`: that it was done
  /// with.
  void update(const std::vector<engine::TaskResult>& results, const std::vector<double>& weights,
              report::StepMetrics& metrics);

  /// For a checkpoint: null where there is nothing to remember.
  nlohmann::ordered_json state() const;
  /// Whether `state` is of these tasks, or there is nothing to remember.
  bool matches(const nlohmann::ordered_json& state) const;
  /// Throws UserError (kBadData).
  void restore(const nlohmann::ordered_json& state, const std::string& source);

  /// A sentence for the log; empty where there is nothing to say.
  std::string description() const;

 private:
  /// A step that GradNorm has yet to learn from.
  struct Observation {
    int64_t step = 0;
    std::vector<engine::TaskResult> results;
    std::vector<double> weights;  // that it was done with
  };

  data::Tasks tasks_;
  engine::TaskSettings settings_;
  std::optional<engine::MaskLossWeights> masks_;
  std::optional<engine::GradNorm> gradnorm_;
  std::deque<Observation> observations_;
};

}  // namespace vlmtrain::train
