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
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

namespace {

/// The cross-entropy of the label tokens of one step, with task weights and sums.
class TextLoss {
 public:
  /// Allocates the memory of all sums. `label_tokens` is their number in the global batch, > 0.
  /// `model` must outlive this object.
  TextLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
           const TaskSettings& tasks);

  /// Returns the loss of a micro-batch, an fp32 scalar with its graph. `hidden` [labels, hidden
  /// size] has the hidden states at batch.label_positions.
  at::Tensor forward(const at::Tensor& hidden, const data::MicroBatch& batch);

  /// As in StepLoss.
  std::vector<at::Tensor> sums() const { return tasks_ ? tasks_->sums() : std::vector<at::Tensor>{}; }
  at::Tensor scalars() const { return tasks_ ? tasks_->scalars() : at::Tensor(); }

 private:
  const models::VisionLanguageModel& model_;
  double label_tokens_;
  int64_t chunk_rows_;
  std::optional<PerTaskSums> tasks_;
};

TextLoss::TextLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
                   const TaskSettings& tasks)
    : model_(model), label_tokens_(label_tokens), chunk_rows_(chunk_rows) {
  VLMTRAIN_CHECK(label_tokens > 0, "a step needs at least one label token");
  const at::Tensor& weight = model.output_weight();
  if (tasks.is_multi_task()) tasks_.emplace(tasks, weight.size(1), weight.device());
}

at::Tensor TextLoss::forward(const at::Tensor& hidden, const data::MicroBatch& batch) {
  const memory::ComponentScope loss(memory::Component::kLoss);
  if (!tasks_) {
    return nn::linear_cross_entropy(hidden, model_.output_weight(), batch.labels, label_tokens_, chunk_rows_);
  }
  return nn::linear_cross_entropy(hidden, model_.output_weight(), batch.labels, label_tokens_, chunk_rows_,
                                  tasks_->make_loss_args(batch.label_tasks));
}

/// The loss of CrossEntropyObjective.
class CrossEntropyStepLoss final : public StepLoss {
 public:
  CrossEntropyStepLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
                       const TaskSettings& tasks)
      : model_(model), text_(model, label_tokens, chunk_rows, tasks) {}

  at::Tensor forward(const data::MicroBatch& batch) override {
    return text_.forward(model_.forward(batch, {.positions = batch.label_positions}).hidden, batch);
  }

  std::vector<at::Tensor> sums() const override { return text_.sums(); }
  at::Tensor scalars() const override { return text_.scalars(); }

 private:
  const models::VisionLanguageModel& model_;
  TextLoss text_;
};

constexpr size_t kLabelTokensIndex = 0, kMasksIndex = 1, kPixelsIndex = 2;  // indices into Normalizers
constexpr int64_t kNumLosses = 3;                                           // number of terms of MaskLosses

/// The loss of TextAndMasksObjective.
class TextAndMasksStepLoss final : public StepLoss {
 public:
  TextAndMasksStepLoss(const models::VisionLanguageModel& model, const Normalizers& normalizers, int64_t chunk_rows,
                       const TaskSettings& tasks, const MaskLossWeights& weights)
      : model_(model),
        normalizers_(normalizers),
        weights_(weights),
        text_(model, normalizers.at(kLabelTokensIndex), chunk_rows, tasks) {
    const memory::ComponentScope loss(memory::Component::kLoss);
    losses_ = at::zeros({kNumLosses}, at::TensorOptions(at::kFloat).device(model.output_weight().device()));
  }

  at::Tensor forward(const data::MicroBatch& batch) override {
    const int64_t labels = batch.label_tokens(), masks = batch.masks.count();
    const at::Tensor positions =
        masks > 0 ? at::cat({batch.label_positions, batch.masks.positions}) : batch.label_positions;
    const at::Tensor hidden = model_.forward(batch, {.positions = positions}).hidden;
    const at::Tensor text = text_.forward(hidden.narrow(0, 0, labels), batch);
    losses_[0] += text.detach();
    if (masks == 0) return text * weights_.text;
    return text * weights_.text + compute_mask_loss(batch.masks, hidden.narrow(0, labels, masks));
  }

  std::vector<at::Tensor> sums() const override {
    std::vector<at::Tensor> sums = text_.sums();
    sums.push_back(losses_);
    return sums;
  }

  at::Tensor scalars() const override {
    const at::Tensor task_scalars = text_.scalars();
    return task_scalars.defined() ? at::cat({losses_, task_scalars}) : losses_;
  }

 private:
  /// Returns the weighted loss of the masks, an fp32 scalar with its graph. `hidden` [masks, hidden
  /// size] has the hidden states that prompt the masks.
  at::Tensor compute_mask_loss(const data::MaskBatch& masks, const at::Tensor& hidden) {
    VLMTRAIN_CHECK(masks.targets.defined(), "the batch has no target masks");
    const at::Tensor logits = model_.compute_mask_logits(masks, hidden, model_.vision_tiles_per_pass());
    const memory::ComponentScope loss(memory::Component::kLoss);
    std::vector<std::array<int64_t, 2>> sizes;
    sizes.reserve(masks.valid_regions.size());
    for (const data::ValidRegion& part : masks.valid_regions) sizes.push_back({part.rows, part.columns});
    const nn::MaskLoss result = nn::mask_loss(logits, masks.targets, sizes, weights_.bce, weights_.dice,
                                              normalizers_.at(kPixelsIndex), normalizers_.at(kMasksIndex));
    losses_.narrow(0, 1, 2) += result.sums;
    return result.loss;
  }

  const models::VisionLanguageModel& model_;
  Normalizers normalizers_;
  MaskLossWeights weights_;
  TextLoss text_;
  at::Tensor losses_;  // fp32 [3]: the terms of MaskLosses in order, summed over the micro-batches so far
};

}  // namespace

Normalizers CrossEntropyObjective::compute_normalizers(std::span<const data::Sample> samples) const {
  int64_t label_tokens = 0;
  for (const auto& sample : samples) label_tokens += sample.label_tokens();
  return {static_cast<double>(label_tokens)};
}

SplitConstraint CrossEntropyObjective::make_split_constraint(std::span<const data::Sample> samples) const {
  SplitConstraint constraint;
  if (!tasks_.resolve_conflicts) return constraint;
  constraint.groups.reserve(samples.size());
  for (const auto& sample : samples) constraint.groups.push_back(sample.task_number);
  return constraint;
}

data::MicroBatch CrossEntropyObjective::collate(std::span<const data::Sample> samples,
                                                std::span<const int64_t> indices) const {
  return data::collate(samples, indices, /*with_tasks=*/tasks_.is_multi_task());
}

std::unique_ptr<StepLoss> CrossEntropyObjective::begin_step(const models::VisionLanguageModel& model,
                                                            const Normalizers& normalizers,
                                                            const StepLayout& layout) const {
  return std::make_unique<CrossEntropyStepLoss>(model, normalizers.at(0), layout.loss_chunk_rows, tasks_);
}

void CrossEntropyObjective::combine_gradients(GradientBuckets& buckets) const {
  resolve_conflicts(buckets, tasks_.seed);
}

std::vector<TaskCounts> CrossEntropyObjective::count_tasks(std::span<const data::Sample> samples) const {
  return tasks_.is_multi_task() ? count_per_task(samples, tasks_.count) : std::vector<TaskCounts>{};
}

ObjectiveMetrics CrossEntropyObjective::compute_metrics(std::span<const double> scalars,
                                                        const std::vector<TaskCounts>& counts) const {
  return {.tasks = make_task_results(scalars, counts), .masks = {}};
}

Normalizers TextAndMasksObjective::compute_normalizers(std::span<const data::Sample> samples) const {
  Normalizers normalizers = text_objective_.compute_normalizers(samples);
  normalizers.resize(kPixelsIndex + 1);
  for (const data::Sample& sample : samples) {
    normalizers[kMasksIndex] += static_cast<double>(sample.masks.count());
    normalizers[kPixelsIndex] += static_cast<double>(sample.masks.count_valid_pixels());
  }
  return normalizers;
}

std::unique_ptr<StepLoss> TextAndMasksObjective::begin_step(const models::VisionLanguageModel& model,
                                                            const Normalizers& normalizers,
                                                            const StepLayout& layout) const {
  return std::make_unique<TextAndMasksStepLoss>(model, normalizers, layout.loss_chunk_rows, text_objective_.tasks(),
                                                weights_);
}

ObjectiveMetrics TextAndMasksObjective::compute_metrics(std::span<const double> scalars,
                                                        const std::vector<TaskCounts>& counts) const {
  ObjectiveMetrics metrics = text_objective_.compute_metrics(scalars.subspan(kNumLosses), counts);
  metrics.masks = MaskLosses{.text = scalars[0], .bce = scalars[1], .dice = scalars[2]};
  return metrics;
}

std::unique_ptr<const Objective> make_objective(const ObjectiveSettings& settings) {
  if (settings.masks) return std::make_unique<TextAndMasksObjective>(settings.tasks, *settings.masks);
  return std::make_unique<CrossEntropyObjective>(settings.tasks);
}

}  // namespace vlmtrain::engine
