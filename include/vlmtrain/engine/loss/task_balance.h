#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

class GradientBuckets;

/// Returns the counts of each task. REQUIRES: task indices in [0, tasks).
std::vector<TaskCounts> count_samples_and_tokens(std::span<const data::Sample> samples, int64_t tasks);

/// Returns the results by task. `scalars` are the values of
/// PerTaskLossSums::compute_metric_scalars(), and `counts` the counts of the global batch by task.
std::vector<TaskResult> make_task_results(std::span<const double> scalars, const std::vector<TaskCounts>& counts);

/// The sums of a step by task, on the device. Not thread-safe.
class PerTaskLossSums {
 public:
  /// `features`: size of the hidden states that enter the loss. REQUIRES: settings.is_multi_task().
  PerTaskLossSums(const TaskSettings& settings, int64_t features, at::Device device);

  /// Returns the arguments of the loss of a micro-batch. `label_task_indices` int64 [labels]: the
  /// task of each label.
  nn::PerTaskLoss make_per_task_loss(const at::Tensor& label_task_indices) const;

  /// Returns the tensors, not copies, that the caller sums over ranks in place before it calls
  /// compute_metric_scalars().
  std::vector<at::Tensor> get_sums_to_reduce() const;

  /// Returns fp32 [tasks · 2] for make_task_results(): sum of the cross-entropy with the weights of
  /// labels, and number of correct labels, of each task. With gradient norms, returns [tasks · 3]: each task's norm
  /// follows.
  at::Tensor compute_metric_scalars() const;

 private:
  at::Tensor tasks_;                 // int64 [tasks, 1]: 0, 1, 2 …
  at::Tensor weights_;               // fp32 [tasks]; undefined: all 1
  at::Tensor sums_;                  // nn::PerTaskLoss::sums
  at::Tensor norm_scale_gradients_;  // nn::PerTaskLoss::feature_scale_gradients; undefined unless norms are measured
};

/// The settings of GradNorm.
struct GradNormSettings {
  double alpha = 1.5;  ///< strength of the pull on tasks that lag behind; 0: equal gradient norms
  double learning_rate = 0.025;
};

/// Task weights by GradNorm (Chen et al. 2018, arXiv 1711.02257, algorithm 1), computed on the
/// host.
///
/// The loss of a step is Σ_i w_i L_i, where L_i is the cross-entropy of task i's label tokens, with
/// their weights, divided by the sum of the weights of all tasks' label tokens. G_i is the norm of the gradient of w_i
/// L_i with respect to W, the scale of the final norm, which is the last parameter shared by all tasks. The gradient is
/// taken relative to W's value, so it exists for frozen weights too. l_i is the task's mean loss in this step, and
/// l_i(0) its mean loss in its first step. The ratio r_i = (l_i / l_i(0)) / mean_j (l_j / l_j(0)) measures how far the
/// task lags behind. The weights follow the gradient descent of Σ_i |G_i − mean_j(G_j) · r_i^alpha| with constant
/// targets mean_j(G_j) · r_i^alpha, and are scaled to sum to the number of tasks. A task without label tokens in a step
/// keeps its weight. Not thread-safe.
class GradNorm {
 public:
  /// The state for checkpoints.
  struct State {
    std::vector<double> weights;                        ///< by task
    std::vector<std::optional<double>> initial_losses;  ///< by task; empty before its first step
  };

  /// Starts with weights of 1.
  GradNorm(int64_t tasks, GradNormSettings settings);

  /// Returns the weights by task.
  const std::vector<double>& weights() const { return state_.weights; }

  /// Updates the weights after a step. `results` are the results of the step by task, with gradient
  /// norms, and `weights` the task weights of that step.
  void update_weights(const std::vector<TaskResult>& results, const std::vector<double>& weights);

  const State& state() const { return state_; }
  /// Restores a state. REQUIRES: it has the same number of tasks.
  void set_state(State state);

 private:
  GradNormSettings settings_;
  State state_;
};

/// Returns the order in which PCGrad compares each task with the other tasks, int64 [tasks − 1,
/// tasks] on the CPU. Column i is a permutation of all tasks except i. Equal seeds give equal
/// orders.
at::Tensor make_pcgrad_orders(int64_t tasks, uint64_t seed);

/// Returns the coefficients c of PCGrad (Yu et al. 2020, arXiv 2001.06782, algorithm 1): the
/// resolved gradient is Σ_j c_j g_j. Each task's gradient is compared with the original gradients
/// of the other tasks, in the order of its column of `orders` (make_pcgrad_orders()). If the two
/// conflict, that is if their product is negative, its projection onto the other gradient is
/// subtracted. A zero gradient does not conflict. `products` is fp64 [tasks, tasks] with g_i · g_j.
/// Returns fp64 [tasks] on the device of the arguments.
at::Tensor compute_pcgrad_coefficients(const at::Tensor& products, const at::Tensor& orders);

/// Applies PCGrad to the gradients of all parameters as one vector. The groups of the buckets are
/// the tasks. The result replaces the sums of group 0. `seed` determines make_pcgrad_orders(). Does
/// not synchronize with the device.
void resolve_gradient_conflicts(GradientBuckets& buckets, uint64_t seed);

}  // namespace vlmtrain::engine
