#include "vlmtrain/engine/loss/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <optional>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/loss/task_balance.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

namespace {

/// The cross-entropy of the label tokens of one step, with task weights and sums.
class TextLoss {
 public:
  /// Allocates the memory of all sums. `label_weight_sum` is that of the global batch, > 0. `model`
  /// must outlive this object.
  TextLoss(const models::VisionLanguageModel& model, double label_weight_sum, int64_t chunk_rows,
           const TaskSettings& tasks);

  /// Returns the loss of a micro-batch, an fp32 scalar with its graph. `hidden` [labels, hidden
  /// size] has the hidden states at batch.label_positions.
  at::Tensor forward(const at::Tensor& hidden, const data::MicroBatch& batch);

  /// As in StepLoss.
  std::vector<at::Tensor> get_sums_to_reduce() const {
    return per_task_loss_sums_ ? per_task_loss_sums_->get_sums_to_reduce() : std::vector<at::Tensor>{};
  }
  at::Tensor compute_metric_scalars() const {
    return per_task_loss_sums_ ? per_task_loss_sums_->compute_metric_scalars() : at::Tensor();
  }

 private:
  const models::VisionLanguageModel& model_;
  double label_weight_sum_;
  int64_t loss_chunk_rows_;
  std::optional<PerTaskLossSums> per_task_loss_sums_;
};

TextLoss::TextLoss(const models::VisionLanguageModel& model, double label_weight_sum, int64_t chunk_rows,
                   const TaskSettings& tasks)
    : model_(model), label_weight_sum_(label_weight_sum), loss_chunk_rows_(chunk_rows) {
  VLMTRAIN_CHECK(label_weight_sum > 0, "a step needs at least one label token");
  const at::Tensor& weight = model.output_weight();
  if (tasks.is_multi_task()) per_task_loss_sums_.emplace(tasks, weight.size(1), weight.device());
}

at::Tensor TextLoss::forward(const at::Tensor& hidden, const data::MicroBatch& batch) {
  const memory::ComponentScope loss_scope(memory::Component::kLoss);
  if (!per_task_loss_sums_) {
    return nn::linear_cross_entropy(hidden, model_.output_projection(), batch.labels, label_weight_sum_,
                                    loss_chunk_rows_, batch.label_weights);
  }
  return nn::linear_cross_entropy(hidden, model_.output_projection(), batch.labels, label_weight_sum_, loss_chunk_rows_,
                                  per_task_loss_sums_->make_per_task_loss(batch.label_task_indices),
                                  batch.label_weights);
}

/// The loss of CrossEntropyObjective.
class CrossEntropyStepLoss final : public StepLoss {
 public:
  CrossEntropyStepLoss(const models::VisionLanguageModel& model, double label_weight_sum, int64_t chunk_rows,
                       const TaskSettings& tasks)
      : model_(model), text_(model, label_weight_sum, chunk_rows, tasks) {}

  at::Tensor forward(const data::MicroBatch& batch) override {
    return text_.forward(model_.forward(batch, {.positions = batch.label_positions}).hidden_states, batch);
  }

  std::vector<at::Tensor> get_sums_to_reduce() const override { return text_.get_sums_to_reduce(); }
  at::Tensor compute_metric_scalars() const override { return text_.compute_metric_scalars(); }

 private:
  const models::VisionLanguageModel& model_;
  TextLoss text_;
};

constexpr size_t kLabelWeightIndex = 0, kMasksIndex = 1, kPixelsIndex = 2;  // indices into LossNormalizers
constexpr int64_t kNumLossTerms = 3;                                        // fields of TextAndMaskLosses

/// The loss of TextAndMasksObjective.
class TextAndMasksStepLoss final : public StepLoss {
 public:
  TextAndMasksStepLoss(const models::VisionLanguageModel& model, const LossNormalizers& normalizers, int64_t chunk_rows,
                       const TaskSettings& tasks, const TextAndMaskLossWeights& weights)
      : model_(model),
        normalizers_(normalizers),
        weights_(weights),
        text_(model, normalizers.at(kLabelWeightIndex), chunk_rows, tasks) {
    const memory::ComponentScope loss_scope(memory::Component::kLoss);
    loss_term_sums_ = at::zeros({kNumLossTerms}, at::TensorOptions(at::kFloat).device(model.output_weight().device()));
  }

  at::Tensor forward(const data::MicroBatch& batch) override {
    const int64_t labels = batch.label_tokens(), masks = batch.masks.count();
    const at::Tensor positions =
        masks > 0 ? at::cat({batch.label_positions, batch.masks.prediction_positions}) : batch.label_positions;
    const at::Tensor hidden = model_.forward(batch, {.positions = positions}).hidden_states;
    const at::Tensor text = text_.forward(hidden.narrow(0, 0, labels), batch);
    loss_term_sums_[0] += text.detach();
    if (masks == 0) return text * weights_.text;
    return text * weights_.text + compute_mask_loss(batch.masks, hidden.narrow(0, labels, masks));
  }

  std::vector<at::Tensor> get_sums_to_reduce() const override {
    std::vector<at::Tensor> sums = text_.get_sums_to_reduce();
    sums.push_back(loss_term_sums_);
    return sums;
  }

  at::Tensor compute_metric_scalars() const override {
    const at::Tensor task_scalars = text_.compute_metric_scalars();
    return task_scalars.defined() ? at::cat({loss_term_sums_, task_scalars}) : loss_term_sums_;
  }

 private:
  /// Returns the weighted loss of the masks, an fp32 scalar with its graph. `hidden` [masks, hidden
  /// size] has the hidden states that prompt the masks.
  at::Tensor compute_mask_loss(const data::MaskBatch& masks, const at::Tensor& hidden) {
    VLMTRAIN_CHECK(masks.targets.defined(), "the batch has no target masks");
    const at::Tensor logits = model_.compute_mask_logits(masks, hidden, model_.vision_tiles_per_pass());
    const memory::ComponentScope loss_scope(memory::Component::kLoss);
    std::vector<std::array<int64_t, 2>> sizes;
    sizes.reserve(masks.valid_regions.size());
    for (const data::ValidRegion& part : masks.valid_regions) sizes.push_back({part.rows, part.columns});
    const nn::MaskLoss result = nn::mask_loss(logits, masks.targets, sizes, weights_.bce, weights_.dice,
                                              normalizers_.at(kPixelsIndex), normalizers_.at(kMasksIndex));
    loss_term_sums_.narrow(0, 1, 2) += result.sums;
    return result.loss;
  }

  const models::VisionLanguageModel& model_;
  LossNormalizers normalizers_;
  TextAndMaskLossWeights weights_;
  TextLoss text_;
  at::Tensor
      loss_term_sums_;  // fp32 [3]: the terms of TextAndMaskLosses in order, summed over the micro-batches so far
};

}  // namespace

LossNormalizers CrossEntropyObjective::compute_normalizers(std::span<const data::Sample> samples) const {
  double label_weight_sum = 0;
  for (const auto& sample : samples) label_weight_sum += sample.label_weight();
  return {label_weight_sum};
}

SplitConstraint CrossEntropyObjective::make_split_constraint(std::span<const data::Sample> samples) const {
  SplitConstraint constraint;
  if (!tasks_.resolve_gradient_conflicts) return constraint;
  constraint.groups.reserve(samples.size());
  for (const auto& sample : samples) constraint.groups.push_back(sample.task_index);
  return constraint;
}

data::MicroBatch CrossEntropyObjective::collate(std::span<const data::Sample> samples,
                                                std::span<const int64_t> indices) const {
  return data::collate(samples, indices, /*with_tasks=*/tasks_.is_multi_task());
}

std::unique_ptr<StepLoss> CrossEntropyObjective::begin_step(const models::VisionLanguageModel& model,
                                                            const LossNormalizers& normalizers,
                                                            const StepLayout& layout) const {
  return std::make_unique<CrossEntropyStepLoss>(model, normalizers.at(0), layout.loss_chunk_rows, tasks_);
}

void CrossEntropyObjective::combine_gradients(GradientBuckets& buckets) const {
  resolve_gradient_conflicts(buckets, tasks_.seed);
}

std::vector<TaskCounts> CrossEntropyObjective::compute_task_counts(std::span<const data::Sample> samples) const {
  return tasks_.is_multi_task() ? count_samples_and_tokens(samples, tasks_.num_tasks) : std::vector<TaskCounts>{};
}

ObjectiveMetrics CrossEntropyObjective::compute_metrics(std::span<const double> scalars,
                                                        const std::vector<TaskCounts>& counts) const {
  return {.tasks = make_task_results(scalars, counts), .masks = {}};
}

LossNormalizers TextAndMasksObjective::compute_normalizers(std::span<const data::Sample> samples) const {
  LossNormalizers normalizers = text_objective_.compute_normalizers(samples);
  normalizers.resize(kPixelsIndex + 1);
  for (const data::Sample& sample : samples) {
    normalizers[kMasksIndex] += static_cast<double>(sample.masks.count());
    normalizers[kPixelsIndex] += static_cast<double>(sample.masks.count_valid_pixels());
  }
  return normalizers;
}

std::unique_ptr<StepLoss> TextAndMasksObjective::begin_step(const models::VisionLanguageModel& model,
                                                            const LossNormalizers& normalizers,
                                                            const StepLayout& layout) const {
  return std::make_unique<TextAndMasksStepLoss>(model, normalizers, layout.loss_chunk_rows, text_objective_.tasks(),
                                                weights_);
}

ObjectiveMetrics TextAndMasksObjective::compute_metrics(std::span<const double> scalars,
                                                        const std::vector<TaskCounts>& counts) const {
  ObjectiveMetrics metrics = text_objective_.compute_metrics(scalars.subspan(kNumLossTerms), counts);
  metrics.masks = TextAndMaskLosses{.text = scalars[0], .bce = scalars[1], .dice = scalars[2]};
  return metrics;
}

std::unique_ptr<const Objective> make_objective(const ObjectiveSettings& settings) {
  if (settings.masks) return std::make_unique<TextAndMasksObjective>(settings.tasks, *settings.masks);
  return std::make_unique<CrossEntropyObjective>(settings.tasks);
}

}  // namespace vlmtrain::engine
