#include "vlmtrain/engine/cross_entropy.h"

#include <optional>

#include "engine/task_sums.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/gradient_sums.h"
#include "vlmtrain/engine/pcgrad.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

namespace {

class CrossEntropyOfStep final : public StepLoss {
 public:
  CrossEntropyOfStep(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
                     const TaskSettings& tasks)
      : model_(model), label_tokens_(label_tokens), chunk_rows_(chunk_rows) {
    const at::Tensor& weight = model.output_weight();
    if (tasks.apart()) tasks_.emplace(tasks, weight.size(1), weight.device());
  }

  at::Tensor of(const data::MicroBatch& batch) override {
    const at::Tensor hidden = model_.forward(batch, {.positions = batch.label_positions}).hidden;
    const memory::InComponent loss(memory::Component::kLoss);
    if (!tasks_) {
      return nn::linear_cross_entropy(hidden, model_.output_weight(), batch.labels, label_tokens_, chunk_rows_);
    }
    return nn::linear_cross_entropy(hidden, model_.output_weight(), batch.labels, label_tokens_, chunk_rows_,
                                    tasks_->of(batch.label_tasks));
  }

  std::vector<at::Tensor> sums() const override { return tasks_ ? tasks_->sums() : std::vector<at::Tensor>{}; }
  at::Tensor numbers() const override { return tasks_ ? tasks_->numbers() : at::Tensor(); }

 private:
  const models::VisionLanguageModel& model_;
  double label_tokens_;
  int64_t chunk_rows_;
  std::optional<TaskSums> tasks_;
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
  VLMTRAIN_CHECK(normalizers.at(0) > 0, "a step without a label token");
  return std::make_unique<CrossEntropyOfStep>(model, normalizers[0], layout.loss_chunk_rows, tasks_);
}

void CrossEntropy::combine(GradientSums& sums) const {
  resolve_conflicts(sums, tasks_.seed);
}

std::vector<TaskCounts> CrossEntropy::counts(std::span<const data::Sample> samples) const {
  return tasks_.apart() ? count_by_task(samples, tasks_.count) : std::vector<TaskCounts>{};
}

ObjectiveMetrics CrossEntropy::metrics(std::span<const double> numbers, const std::vector<TaskCounts>& counts) const {
  return {.tasks = task_results(numbers, counts)};
}

std::unique_ptr<const Objective> make_objective(const ObjectiveSettings& settings) {
  return std::make_unique<CrossEntropy>(settings.tasks);
}

}  // namespace vlmtrain::engine
