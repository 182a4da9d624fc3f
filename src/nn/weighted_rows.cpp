#include "vlmtrain/nn/weighted_rows.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace vlmtrain::nn {

namespace {

struct WeightedRows : torch::autograd::Function<WeightedRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& table,
                            const at::Tensor& entries, const at::Tensor& weights) {
    context->save_for_backward({entries, weights});
    context->saved_data["rows"] = table.size(0);
    const auto precise = at::toOpMathType(table.scalar_type());
    at::Tensor sum;
    for (int64_t tap = 0; tap < entries.size(0); ++tap) {
      const at::Tensor rows = table.index_select(0, entries[tap]), weight = weights[tap].unsqueeze(1).to(precise);
      sum = tap == 0 ? rows * weight : sum.addcmul_(rows.to(precise), weight);
    }
    return sum.to(table.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &entries = saved[0], &weights = saved[1], &gradient = gradients[0];
    const auto precise = at::toOpMathType(gradient.scalar_type());
    at::Tensor sum;
    for (int64_t tap = 0; tap < entries.size(0); ++tap) {
      const at::Tensor of_tap = at::embedding_dense_backward(gradient * weights[tap].unsqueeze(1).to(precise),
                                                             entries[tap], context->saved_data["rows"].toInt(),
                                                             /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
      sum = tap == 0 ? of_tap : sum.add_(of_tap);
    }
    return {sum.to(gradient.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor weighted_rows(const at::Tensor& table, const at::Tensor& entries, const at::Tensor& weights) {
  return WeightedRows::apply(table, entries, weights);
}

}  // namespace vlmtrain::nn
