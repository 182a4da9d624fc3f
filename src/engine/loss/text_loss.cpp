#include "engine/loss/text_loss.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/copy.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/layers/losses.h"

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

TextLoss::TextLoss(const models::VisionLanguageModel& model, double label_tokens, int64_t chunk_rows,
                   const TaskSettings& tasks)
    : model_(model), label_tokens_(label_tokens), chunk_rows_(chunk_rows) {
  VLMTRAIN_CHECK(label_tokens > 0, "a step without a label token");
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

}  // namespace vlmtrain::engine
