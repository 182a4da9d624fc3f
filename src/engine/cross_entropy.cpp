#include "vlmtrain/engine/cross_entropy.h"

#include "engine/text_loss.h"
#include "vlmtrain/engine/gradient_sums.h"
#include "vlmtrain/engine/pcgrad.h"

namespace vlmtrain::engine {

namespace {

class CrossEntropyOfStep final : public StepLoss {
 public:
  CrossEntropyOfStep(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
                     const TaskSettings& tasks)
      : model_(model), text_(model, label_tokens, chunk_rows, tasks) {}

  at::Tensor of(const data::MicroBatch& batch) override {
    return text_.of(model_.forward(batch, {.positions = batch.label_positions}).hidden, batch);
  }

  std::vector<at::Tensor> sums() const override { return text_.sums(); }
  at::Tensor numbers() const override { return text_.numbers(); }

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

CutRule CrossEntropy::cut_rule(std::span<const data::Sample> samples) const {
  CutRule rule;
  if (!tasks_.resolve_conflicts) return rule;
  rule.groups.reserve(samples.size());
  for (const auto& sample : samples) rule.groups.push_back(sample.task_number);
  return rule;
}

data::MicroBatch CrossEntropy::collate(std::span<const data::Sample> samples, std::span<const int64_t> places) const {
  return data::collate(samples, places, /*with_tasks=*/tasks_.apart());
}

std::unique_ptr<StepLoss> CrossEntropy::begin(const models::VisionLanguageModel& model, const Normalizers& normalizers,
                                              const StepLayout& layout) const {
  return std::make_unique<CrossEntropyOfStep>(model, normalizers.at(0), layout.loss_chunk_rows, tasks_);
}

void CrossEntropy::combine(GradientSums& sums) const {
  resolve_conflicts(sums, tasks_.seed);
}

std::vector<TaskCounts> CrossEntropy::counts(std::span<const data::Sample> samples) const {
  return tasks_.apart() ? count_by_task(samples, tasks_.count) : std::vector<TaskCounts>{};
}

ObjectiveMetrics CrossEntropy::metrics(std::span<const double> numbers, const std::vector<TaskCounts>& counts) const {
  return {.tasks = task_results(numbers, counts), .masks = {}};
}

}  // namespace vlmtrain::engine
