#include "vlmtrain/nn/attention/output_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace vlmtrain::nn {

namespace {

/// Returns a view of the queries (`part` 0) or gates (1) in x: [rows, heads, head_dim].
at::Tensor view_interleaved(const at::Tensor& x, int64_t heads, int64_t head_dim, int64_t part) {
  return x.narrow(1, 0, 2 * heads * head_dim).unflatten(1, {heads, 2, head_dim}).select(2, part);
}

struct SplitOutputGateFunction : torch::autograd::Function<SplitOutputGateFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                int64_t heads, int64_t head_dim) {
    context->saved_data["heads"] = heads;
    context->saved_data["head_dim"] = head_dim;
    const int64_t query_columns = heads * head_dim;
    const at::Tensor qkv = at::cat({view_interleaved(x, heads, head_dim, 0).flatten(1),
                                    x.narrow(1, 2 * query_columns, x.size(1) - 2 * query_columns)},
                                   1);
    return {qkv, view_interleaved(x, heads, head_dim, 1).flatten(1)};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const int64_t heads = context->saved_data["heads"].toInt(), head_dim = context->saved_data["head_dim"].toInt();
    const int64_t query_columns = heads * head_dim;
    const at::Tensor &dqkv = gradients[0], &dgate = gradients[1];
    const at::Tensor dx = at::empty({dqkv.size(0), dqkv.size(1) + query_columns}, dqkv.options());
    view_interleaved(dx, heads, head_dim, 0).copy_(dqkv.narrow(1, 0, query_columns).unflatten(1, {heads, head_dim}));
    view_interleaved(dx, heads, head_dim, 1).copy_(dgate.unflatten(1, {heads, head_dim}));
    const int64_t other_columns = dqkv.size(1) - query_columns;
    dx.narrow(1, 2 * query_columns, other_columns).copy_(dqkv.narrow(1, query_columns, other_columns));
    return {dx, {}, {}};
  }
};

/// x · sigmoid(gate) for inputs x and gate.
class OutputGatePrologue final : public FusedPrologue {
 public:
  Output forward(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    return {.value = at::sigmoid(inputs[1]).mul_(inputs[0])};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& /*output*/,
                                   const at::Tensor& gradient, const std::vector<bool>& needs_grad) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor factor = at::sigmoid(inputs[1]);
    std::vector<at::Tensor> gradients(inputs.size());
    if (needs_grad[1]) gradients[1] = at::sigmoid_backward(gradient * inputs[0], factor);
    if (needs_grad[0]) gradients[0] = gradient * factor;
    return gradients;
  }
};

}  // namespace

GatedQkv split_output_gate(const at::Tensor& x, const HeadShape& heads) {
  auto parts = SplitOutputGateFunction::apply(x, heads.num_heads, heads.head_dim);
  return {parts[0], parts[1]};
}

LinearInput apply_output_gate(const at::Tensor& x, const at::Tensor& gate) {
  return {std::make_shared<OutputGatePrologue>(), {x, gate}};
}

}  // namespace vlmtrain::nn
