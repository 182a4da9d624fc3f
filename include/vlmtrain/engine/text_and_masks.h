#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/engine/objective.h"

namespace vlmtrain::engine {

/// Cross-entropy over the label tokens, and binary cross-entropy and Dice loss (nn/mask_loss.h) of the masks that some
/// of them stand for. Each is divided by its own sum over the global batch: label tokens; pixels of masks, padding left
/// out; masks. Samples without a mask have words only. Tasks are weighed and told apart in the words: their weights do
/// not count for masks, whose gradients are summed with the other gradients of their sample's task.
class TextAndMasks final : public Objective {
 public:
  TextAndMasks(TaskSettings tasks, MaskLossWeights weights) : text_(std::move(tasks)), weights_(weights) {}

  Normalizers normalizers(std::span<const data::Sample> samples) const override;
  SplitConstraint split_constraint(std::span<const data::Sample> samples) const override {
    return text_.split_constraint(samples);
  }
  data::MicroBatch collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const override {
    return text_.collate(samples, indices);
  }
  std::unique_ptr<StepLoss> begin_step(const models::VisionLanguageModel& model, const Normalizers& normalizers,
                                       const StepLayout& layout) const override;
  int64_t gradient_groups() const override { return text_.gradient_groups(); }
  void combine_gradients(GradientBuckets& buckets) const override { text_.combine_gradients(buckets); }
  std::vector<TaskCounts> counts(std::span<const data::Sample> samples) const override { return text_.counts(samples); }
  ObjectiveMetrics metrics(std::span<const double> scalars, const std::vector<TaskCounts>& counts) const override;
  std::vector<double> task_weights() const override { return text_.task_weights(); }

 private:
  CrossEntropy text_;
  MaskLossWeights weights_;
};

}  // namespace vlmtrain::engine
