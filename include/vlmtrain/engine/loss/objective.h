#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/loss/task_balance.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

class GradientBuckets;

/// The divisors of the terms of a loss, such as the sum of the label tokens' weights. Each is a sum over the
/// samples of the global batch. Losses and gradients of micro-batches therefore add up to those of
/// the global batch, for any split.
using LossNormalizers = std::vector<double>;

/// The loss of one step over its micro-batches, on the model's device. Not thread-safe.
class StepLoss {
 public:
  StepLoss() = default;
  virtual ~StepLoss() = default;
  StepLoss(const StepLoss&) = delete;
  StepLoss& operator=(const StepLoss&) = delete;

  /// Runs the forward pass of a micro-batch on the device. Returns its share of the loss, an fp32
  /// scalar with its graph.
  virtual at::Tensor forward(const data::MicroBatch& batch) = 0;

  /// Returns the tensors, not copies, that the caller sums over ranks in place before it calls
  /// compute_metric_scalars().
  virtual std::vector<at::Tensor> get_sums_to_reduce() const { return {}; }
  /// Returns the metrics of the step as fp32 [scalars] on the device, for
  /// Objective::compute_metrics(); undefined if there are none. REQUIRES: all forward passes are
  /// done, and these sums are reduced.
  virtual at::Tensor compute_metric_scalars() const { return {}; }
};

/// A training objective: the loss, its normalizers, and how gradients are combined. A run has one,
/// or one per step if task weights change. Immutable.
class Objective {
 public:
  Objective() = default;
  virtual ~Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;

  /// Returns the normalizers of these samples. The normalizers of a step are their sums over all
  /// ranks.
  virtual LossNormalizers compute_normalizers(std::span<const data::Sample> samples) const = 0;
  /// Returns the constraint on splits of these samples.
  virtual SplitConstraint make_split_constraint(std::span<const data::Sample> /*samples*/) const { return {}; }

  /// Returns the samples with these indices as one micro-batch on the host, including all tensors
  /// that the loss reads.
  virtual data::MicroBatch collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const {
    return data::collate(samples, indices);
  }
  /// Begins a step and allocates the memory of its sums. `normalizers` are those of the global
  /// batch. `model` must outlive the result. Throws InternalError if a required normalizer is 0.
  virtual std::unique_ptr<StepLoss> begin_step(const models::VisionLanguageModel& model,
                                               const LossNormalizers& normalizers, const StepLayout& layout) const = 0;

  /// Returns the number of groups whose gradients are summed separately (GradientBuckets): one per
  /// group of the split constraint, or 1.
  virtual int64_t num_gradient_groups() const { return 1; }
  /// Combines the gradients of all groups into group 0. REQUIRES: num_gradient_groups() > 1.
  virtual void combine_gradients(GradientBuckets& /*buckets*/) const {}

  /// Returns the counts of these samples by task; empty for a single task.
  virtual std::vector<TaskCounts> compute_task_counts(std::span<const data::Sample> /*samples*/) const { return {}; }
  /// Returns the metrics of a step. `scalars` has the values of StepLoss::compute_metric_scalars(),
  /// and `counts` the counts of the global batch.
  virtual ObjectiveMetrics compute_metrics(std::span<const double> /*scalars*/,
                                           const std::vector<TaskCounts>& /*counts*/) const {
    return {};
  }
  /// Returns the weight of each task's label tokens; empty if all are 1.
  virtual std::vector<double> task_weights() const { return {}; }
};

/// Returns the objective of these settings.
std::unique_ptr<const Objective> make_objective(const ObjectiveSettings& settings);

/// The cross-entropy of the label tokens, times their weights (data::Sample::label_weights), divided
/// by the sum of the weights in the global batch. Supports task weights, sums by task, and PCGrad.
class CrossEntropyObjective final : public Objective {
 public:
  /// Default settings have no tasks, which is the plain cross-entropy.
  explicit CrossEntropyObjective(TaskSettings tasks = {}) : tasks_(std::move(tasks)) {}

  LossNormalizers compute_normalizers(std::span<const data::Sample> samples) const override;
  SplitConstraint make_split_constraint(std::span<const data::Sample> samples) const override;
  data::MicroBatch collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const override;
  std::unique_ptr<StepLoss> begin_step(const models::VisionLanguageModel& model, const LossNormalizers& normalizers,
                                       const StepLayout& layout) const override;
  int64_t num_gradient_groups() const override { return tasks_.resolve_gradient_conflicts ? tasks_.num_tasks : 1; }
  void combine_gradients(GradientBuckets& buckets) const override;
  std::vector<TaskCounts> compute_task_counts(std::span<const data::Sample> samples) const override;
  ObjectiveMetrics compute_metrics(std::span<const double> scalars,
                                   const std::vector<TaskCounts>& counts) const override;

  std::vector<double> task_weights() const override { return tasks_.weights; }
  const TaskSettings& tasks() const { return tasks_; }

 private:
  TaskSettings tasks_;
};

/// The weighted sum of the cross-entropy of the label tokens, and of binary cross-entropy and Dice
/// loss (nn::mask_loss) of predicted masks. The normalizers are, in the global batch: the sum of the
/// label tokens' weights, and the numbers of masks and of pixels of masks without padding. Samples without masks
/// contribute to the text term only. Task weights apply to the text term only. Gradients of masks are summed with those
/// of their sample's task.
class TextAndMasksObjective final : public Objective {
 public:
  TextAndMasksObjective(TaskSettings tasks, TextAndMaskLossWeights weights)
      : text_objective_(std::move(tasks)), weights_(weights) {}

  LossNormalizers compute_normalizers(std::span<const data::Sample> samples) const override;
  SplitConstraint make_split_constraint(std::span<const data::Sample> samples) const override {
    return text_objective_.make_split_constraint(samples);
  }
  data::MicroBatch collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const override {
    return text_objective_.collate(samples, indices);
  }
  std::unique_ptr<StepLoss> begin_step(const models::VisionLanguageModel& model, const LossNormalizers& normalizers,
                                       const StepLayout& layout) const override;
  int64_t num_gradient_groups() const override { return text_objective_.num_gradient_groups(); }
  void combine_gradients(GradientBuckets& buckets) const override { text_objective_.combine_gradients(buckets); }
  std::vector<TaskCounts> compute_task_counts(std::span<const data::Sample> samples) const override {
    return text_objective_.compute_task_counts(samples);
  }
  ObjectiveMetrics compute_metrics(std::span<const double> scalars,
                                   const std::vector<TaskCounts>& counts) const override;
  std::vector<double> task_weights() const override { return text_objective_.task_weights(); }

 private:
  CrossEntropyObjective text_objective_;
  TextAndMaskLossWeights weights_;
};

}  // namespace vlmtrain::engine
