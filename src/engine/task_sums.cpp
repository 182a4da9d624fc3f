#include "engine/task_sums.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/copy.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

PerTaskSums::PerTaskSums(const TaskSettings& settings, int64_t features, at::Device device) {
  const memory::ComponentScope loss(memory::Component::kLoss);
  VLMTRAIN_CHECK(settings.weights.empty() || std::ssize(settings.weights) == settings.count, "{} weights for {} tasks",
                 settings.weights.size(), settings.count);
  const auto fp32 = at::TensorOptions(at::kFloat).device(device);
  tasks_ = at::arange(settings.count, fp32.dtype(at::kLong)).unsqueeze(1);
  if (!settings.weights.empty()) {
    weights_ = memory::copy_to_device(at::tensor(settings.weights, at::TensorOptions(at::kFloat)), device);
  }
  sums_ = at::zeros({settings.count, 2}, fp32);
  if (settings.gradient_norms) scale_gradients_ = at::zeros({settings.count, features}, fp32);
}

nn::PerTaskLoss PerTaskSums::make_loss_args(const at::Tensor& label_tasks) const {
  return {.task_one_hot = label_tasks.eq(tasks_).to(at::kFloat),
          .weights = weights_.defined() ? weights_.index_select(0, label_tasks) : weights_,
          .sums = sums_,
          .scale_gradients = scale_gradients_};
}

std::vector<at::Tensor> PerTaskSums::sums() const {
  if (!scale_gradients_.defined()) return {sums_};
  return {sums_, scale_gradients_};
}

at::Tensor PerTaskSums::scalars() const {
  if (!scale_gradients_.defined()) return sums_.flatten();
  return at::cat({sums_, at::linalg_vector_norm(scale_gradients_, 2, at::IntArrayRef{1}, /*keepdim=*/true)}, 1)
      .flatten();
}

std::vector<TaskCounts> count_per_task(std::span<const data::Sample> samples, int64_t tasks) {
  std::vector<TaskCounts> counts(static_cast<size_t>(tasks));
  for (const auto& sample : samples) {
    TaskCounts& count = counts.at(static_cast<size_t>(sample.task_number));
    ++count.samples;
    count.label_tokens += sample.label_tokens();
  }
  return counts;
}

std::vector<TaskResult> make_task_results(std::span<const double> scalars, const std::vector<TaskCounts>& counts) {
  std::vector<TaskResult> results;
  if (counts.empty()) return results;
  const size_t scalars_per_task = scalars.size() / counts.size();
  VLMTRAIN_CHECK(scalars_per_task * counts.size() == scalars.size() && (scalars_per_task == 2 || scalars_per_task == 3),
                 "{} numbers of {} tasks", scalars.size(), counts.size());
  for (size_t task = 0; task < counts.size(); ++task) {
    const auto values = scalars.subspan(task * scalars_per_task, scalars_per_task);
    TaskResult& result = results.emplace_back(TaskResult{.counts = counts[task]});
    if (counts[task].label_tokens > 0) {
      result.loss = values[0] / static_cast<double>(counts[task].label_tokens);
      result.accuracy = values[1] / static_cast<double>(counts[task].label_tokens);
    }
    if (scalars_per_task == 3) result.gradient_norm = values[2];
  }
  return results;
}

}  // namespace vlmtrain::engine
