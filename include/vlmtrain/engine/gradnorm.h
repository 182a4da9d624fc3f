#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/engine/tasks.h"

namespace vlmtrain::engine {

struct GradNormSettings {
  double alpha = 1.5;  ///< how strongly tasks that learn slowly are pulled along; 0: equal gradient norms
  double learning_rate = 0.025;
};

/// Weights of tasks after GradNorm (Chen et al. 2018, arXiv 1711.02257, algorithm 1), on the host.
///
/// A step's loss is Σ_i w_i L_i, where L_i is the task's share of it: the cross-entropy of its label tokens, divided by
/// the label tokens of all tasks. G_i is the norm of the gradient of w_i L_i with respect to W. W is what all tasks
/// share last before the output projection, the scale of the final norm; it is taken relative to its value, so that
/// the measure is the same with weights that are frozen. With l_i the task's mean loss now and l_i(0) that of the first
/// step that had it, r_i = (l_i / l_i(0)) / mean_j (l_j / l_j(0)) is how far the task lags behind. The weights descend
/// the gradient of Σ_i |G_i − mean_j(G_j) · r_i^alpha|, whose target is held constant, and are scaled so that they add
/// up to the number of tasks. A task without a label token in a step keeps its weight in it.
class GradNorm {
 public:
  /// All there is to it, for a checkpoint.
  struct State {
    std::vector<double> weights;                      ///< by task
    std::vector<std::optional<double>> first_losses;  ///< by task; nothing before its first step
  };

  GradNorm(int64_t tasks, GradNormSettings settings);

  const std::vector<double>& weights() const { return state_.weights; }

  /// `results`: of a step that was done with `weights`, by task, with gradient norms.
  void update(const std::vector<TaskResult>& results, const std::vector<double>& weights);

  const State& state() const { return state_; }
  /// REQUIRES: of as many tasks.
  void set_state(State state);

 private:
  GradNormSettings settings_;
  State state_;
};

}  // namespace vlmtrain::engine
