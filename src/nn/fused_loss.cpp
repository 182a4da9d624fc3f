#include "vlmtrain/nn/fused_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "vlmtrain/base/error.h"
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

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& labels, double normalizer, int64_t chunk_rows) {
    const bool hidden_gradient_wanted = hidden.requires_grad();
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
      at::Tensor logits = matmul_transposed(chunk, weight).to(at::kFloat);
      const at::Tensor log_normalizer = at::logsumexp(logits, 1, /*keepdim=*/true);
      loss += (log_normalizer - logits.gather(1, chunk_labels)).sum();
      if (!hidden_gradient_wanted && !weight_gradient_wanted) continue;

      // In place of the logits: (softmax − one-hot) / divisor, the gradient of the loss with respect to them.
      at::Tensor logits_gradient = logits.sub_(log_normalizer).exp_().div_(divisor);
      logits_gradient.scatter_add_(1, chunk_labels, at::full({rows, 1}, -1.0 / divisor, fp32));
      logits_gradient = logits_gradient.to(hidden.scalar_type());
      if (hidden_gradient_wanted) {
        hidden_gradient.narrow(0, first, rows).copy_(matmul_transposed(logits_gradient, weight.t()));
      }
      if (!weight_gradient_wanted) continue;
      if (is_late) {
        weight_gradient.add_(matmul_transposed(logits_gradient.t(), (chunk / kRoomForSums).t()), kRoomForSums);
      } else {
        weight_gradient += matmul_transposed(logits_gradient.t(), chunk.t());
      }
    }
    if (weight_gradient_wanted && !is_late) weight_gradient = weight_gradient.to(weight.scalar_type());
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
    return {scaled("hidden_gradient"), scaled("weight_gradient"), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows) {
  VLMTRAIN_CHECK(hidden.size(0) > 0 && hidden.size(0) == labels.size(0), "{} hidden states for {} labels",
                 hidden.size(0), labels.size(0));
  return LinearCrossEntropy::apply(hidden, weight, labels, normalizer, chunk_rows);
}

}  // namespace vlmtrain::nn
