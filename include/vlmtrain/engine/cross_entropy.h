#pragma once

#include <memory>
#include <vector>

#include "vlmtrain/engine/objective.h"

namespace vlmtrain::engine {

/// Cross-entropy over the label tokens, divided by the label tokens of the global batch; where samples are of several
/// tasks, with their weights, sums by task and PCGrad.
class CrossEntropy final : public Objective {
 public:
  explicit CrossEntropy(TaskSettings tasks = {}) : tasks_(std::move(tasks)) {}

  Normalizers normalizers(std::span<const data::Sample> samples) const override;
  SplitConstraint split_constraint(std::span<const data::Sample> samples) const override;
  data::MicroBatch collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const override;
  std::unique_ptr<StepLoss> begin_step(const models::VisionLanguageModel& model, const Normalizers& normalizers,
                                       const StepLayout& layout) const override;
  int64_t gradient_groups() const override { return tasks_.resolve_conflicts ? tasks_.count : 1; }
  void combine_gradients(GradientBuckets& buckets) const override;
  std::vector<TaskCounts> counts(std::span<const data::Sample> samples) const override;
  ObjectiveMetrics metrics(std::span<const double> scalars, const std::vector<TaskCounts>& counts) const override;

  std::vector<double> task_weights() const override { return tasks_.weights; }
  const TaskSettings& tasks() const { return tasks_; }

 private:
  TaskSettings tasks_;
};

}  // namespace vlmtrain::engine
