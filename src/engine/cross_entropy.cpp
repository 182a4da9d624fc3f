#include "vlmtrain/engine/cross_entropy.h"

#include "engine/text_loss.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/pcgrad.h"

namespace vlmtrain::engine {

namespace {

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

}  // namespace

Normalizers CrossEntropy::normalizers(std::span<const data::Sample> samples) const {
  int64_t label_tokens = 0;
  for (const auto& sample : samples) label_tokens += sample.label_tokens();
  return {static_cast<double>(label_tokens)};
}

SplitConstraint CrossEntropy::split_constraint(std::span<const data::Sample> samples) const {
  SplitConstraint constraint;
  if (!tasks_.resolve_conflicts) return constraint;
  constraint.groups.reserve(samples.size());
  for (const auto& sample : samples) constraint.groups.push_back(sample.task_number);
  return constraint;
}

data::MicroBatch CrossEntropy::collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const {
  return data::collate(samples, indices, /*with_tasks=*/tasks_.is_multi_task());
}

std::unique_ptr<StepLoss> CrossEntropy::begin_step(const models::VisionLanguageModel& model,
                                                   const Normalizers& normalizers, const StepLayout& layout) const {
  return std::make_unique<CrossEntropyStepLoss>(model, normalizers.at(0), layout.loss_chunk_rows, tasks_);
}

void CrossEntropy::combine_gradients(GradientBuckets& buckets) const {
  resolve_conflicts(buckets, tasks_.seed);
}

std::vector<TaskCounts> CrossEntropy::counts(std::span<const data::Sample> samples) const {
  return tasks_.is_multi_task() ? count_per_task(samples, tasks_.count) : std::vector<TaskCounts>{};
}

ObjectiveMetrics CrossEntropy::metrics(std::span<const double> scalars, const std::vector<TaskCounts>& counts) const {
  return {.tasks = make_task_results(scalars, counts), .masks = {}};
}

}  // namespace vlmtrain::engine
