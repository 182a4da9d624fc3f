#include "vlmtrain/nn/fused_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::nn {

namespace {

/// fp16 has no room for gradients that are divided by thousands of labels: with it they are divided only in the
/// backward pass, together with the loss scale, and in fp32.
bool divides_late(const at::Tensor& hidden) {
  return hidden.scalar_type() == at::kHalf;
}

/// A weight's gradient adds up over the rows of a chunk, which could pass fp16's largest number; exact, a power of two.
constexpr double kRoomForSums = 64;

/// log softmax of logits fp32 [rows, vocabulary], in their place: a row is read whole before it is written.
void take_log_softmax(at::Tensor logits) {
  at::_log_softmax_out(logits, logits, /*dim=*/1, /*half_to_float=*/false);
}

/// scores · factors in the dtype of `hidden`; in place of the scores where that is theirs.
at::Tensor product_as(const at::Tensor& hidden, const at::Tensor& scores, const at::Tensor& factors) {
  if (hidden.scalar_type() == scores.scalar_type()) return scores.mul_(factors);
  at::Tensor result = at::empty(scores.sizes(), scores.options().dtype(hidden.scalar_type()));
  return at::mul_out(result, scores, factors);
}

/// What is wanted of a chunk of rows.
struct ChunkJob {
  at::Tensor labels;       ///< int64 [rows, 1]
  at::Tensor row_weights;  ///< fp32 [rows, 1], or undefined
  double divisor;
  bool gradient_wanted;
  bool is_right_wanted;
};

struct ChunkLoss {
  at::Tensor cross_entropy, is_right;  ///< fp32 [rows, 1]; the second undefined where it was not wanted
  /// (softmax − one-hot) · weight / divisor, the gradient of the loss with respect to the logits, in their dtype:
  /// rounded once; undefined where it was not wanted. Logits may be overwritten by it.
  at::Tensor logits_gradient;
};

ChunkLoss by_aten(const at::Tensor& logits, const ChunkJob& job) {
  const at::Tensor scores = logits.to(at::kFloat);
  take_log_softmax(scores);
  ChunkLoss loss;
  loss.cross_entropy = scores.gather(1, job.labels).neg_();
  if (job.is_right_wanted) {
    const at::Tensor least = at::amax(scores, 1, /*keepdim=*/true).neg_();
    loss.is_right = loss.cross_entropy.eq(least).to(at::kFloat);
  }
  if (!job.gradient_wanted) return loss;
  scores.exp_().scatter_add_(1, job.labels, at::full({scores.size(0), 1}, -1.0, scores.options()));
  const at::Tensor factors =
      job.row_weights.defined() ? job.row_weights / job.divisor : at::full({1, 1}, 1.0 / job.divisor, scores.options());
  loss.logits_gradient = product_as(logits, scores, factors);
  return loss;
}

ChunkLoss in_one_pass(const at::Tensor& logits, const ChunkJob& job) {
  auto rows = kernels::cross_entropy(logits, job.labels, 1 / job.divisor, job.row_weights, job.gradient_wanted);
  return {rows.cross_entropy, rows.is_right, logits};
}

/// The rows of a chunk in LossByTask.
class ChunkByTask {
 public:
  ChunkByTask(const LossByTask& by_task, int64_t first, int64_t rows)
      : by_task_(by_task), members_(by_task.members.narrow(1, first, rows)) {
    if (by_task.weights.defined()) weights_ = by_task.weights.narrow(0, first, rows).unsqueeze(1);
  }

  /// fp32 [rows, 1], or undefined.
  const at::Tensor& weights() const { return weights_; }

  /// Both fp32 [rows, 1].
  void add(const at::Tensor& cross_entropy, const at::Tensor& is_right) const {
    by_task_.sums.add_(matmul_transposed(members_, at::cat({cross_entropy, is_right}, 1).t()));
  }

  /// Both [rows, features]; the gradient has yet to be divided by `divisor`.
  void add_scale_gradients(const at::Tensor& hidden, const at::Tensor& gradient, double divisor) const {
    by_task_.scale_gradients.add_(matmul_transposed(members_, gradient.to(at::kFloat).mul(hidden).t()), 1.0 / divisor);
  }

 private:
  const LossByTask& by_task_;
  at::Tensor members_;  // [tasks, rows]
  at::Tensor weights_;
};

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& labels, double normalizer, int64_t chunk_rows,
                            const LossByTask* by_task) {
    const bool scale_gradients_wanted = by_task != nullptr && by_task->scale_gradients.defined();
    const bool hidden_gradient_wanted = hidden.requires_grad() || scale_gradients_wanted;
    const bool weight_gradient_wanted = weight.requires_grad();
    const auto fp32 = hidden.options().dtype(at::kFloat).requires_grad(false);
    at::Tensor loss = at::zeros({}, fp32);
    at::Tensor hidden_gradient, weight_gradient;
    const bool is_late = divides_late(hidden);
    const double divisor = is_late ? 1.0 : normalizer;
    if (hidden_gradient_wanted) hidden_gradient = at::empty_like(hidden);
    if (weight_gradient_wanted) weight_gradient = at::zeros(weight.sizes(), fp32);

    for (int64_t first = 0; first < hidden.size(0); first += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, hidden.size(0) - first);
      const at::Tensor chunk = hidden.narrow(0, first, rows);
      const at::Tensor chunk_labels = labels.narrow(0, first, rows).unsqueeze(1);
      std::optional<ChunkByTask> tasks;
      if (by_task != nullptr) tasks.emplace(*by_task, first, rows);
      const ChunkJob job{.labels = chunk_labels,
                         .row_weights = tasks ? tasks->weights() : at::Tensor(),
                         .divisor = divisor,
                         .gradient_wanted = hidden_gradient_wanted || weight_gradient_wanted,
                         .is_right_wanted = tasks.has_value()};
      const at::Tensor logits = matmul_transposed(chunk, weight);
      const auto [cross_entropy, is_right, logits_gradient] =
          kernels::has(kernels::Kernel::kCrossEntropy, logits) ? in_one_pass(logits, job) : by_aten(logits, job);
      if (tasks) tasks->add(cross_entropy, is_right);
      loss += job.row_weights.defined() ? cross_entropy.mul(job.row_weights).sum() : cross_entropy.sum();
      if (!job.gradient_wanted) continue;

      if (hidden_gradient_wanted) {
        const at::Tensor chunk_gradient = hidden_gradient.narrow(0, first, rows);
        chunk_gradient.copy_(matmul_transposed(logits_gradient, weight.t()));
        if (scale_gradients_wanted) tasks->add_scale_gradients(chunk, chunk_gradient, is_late ? normalizer : 1.0);
      }
      if (!weight_gradient_wanted) continue;
      if (is_late) {
        weight_gradient.add_(matmul_transposed(logits_gradient.t(), (chunk / kRoomForSums).t()), kRoomForSums);
      } else {
        weight_gradient += matmul_transposed(logits_gradient.t(), chunk.t());
      }
    }
    if (weight_gradient_wanted && !is_late) weight_gradient = weight_gradient.to(weight.scalar_type());
    if (!hidden.requires_grad()) hidden_gradient.reset();
    context->saved_data["late_divisor"] = is_late ? normalizer : 0.0;
    context->saved_data["hidden_gradient"] = hidden_gradient;
    context->saved_data["weight_gradient"] = weight_gradient;
    return loss.div_(normalizer);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // The incoming gradient is the loss scale; it stays on the device.
    const double late_divisor = context->saved_data["late_divisor"].toDouble();
    const at::Tensor factor = late_divisor > 0 ? gradients[0] / late_divisor : gradients[0];
    const auto scaled = [&](const char* name) {
      at::Tensor gradient = context->saved_data[name].toTensor();
      context->saved_data.erase(name);
      if (!gradient.defined()) return gradient;
      // Beside a tensor of 16 bits the factor would have 16 as well, and the loss scale may be more than fp16 holds.
      if (late_divisor > 0) return gradient.to(at::kFloat).mul_(factor).to(at::kHalf);
      return gradient.mul_(factor);
    };
    return {scaled("hidden_gradient"), scaled("weight_gradient"), {}, {}, {}, {}};
  }
};

at::Tensor apply(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, double normalizer,
                 int64_t chunk_rows, const LossByTask* by_task) {
  VLMTRAIN_CHECK(hidden.size(0) > 0 && hidden.size(0) == labels.size(0), "{} hidden states for {} labels",
                 hidden.size(0), labels.size(0));
  VLMTRAIN_CHECK(by_task == nullptr || by_task->members.size(1) == labels.size(0), "tasks of {} labels for {} labels",
                 by_task->members.size(1), labels.size(0));
  return LinearCrossEntropy::apply(hidden, weight, labels, normalizer, chunk_rows, by_task);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows) {
  return apply(hidden, weight, labels, normalizer, chunk_rows, nullptr);
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows, const LossByTask& by_task) {
  return apply(hidden, weight, labels, normalizer, chunk_rows, &by_task);
}

}  // namespace vlmtrain::nn
