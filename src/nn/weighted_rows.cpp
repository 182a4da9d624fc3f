#include "vlmtrain/nn/weighted_rows.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace vlmtrain::nn {

namespace {

struct WeightedRows : torch::autograd::Function<WeightedRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& table,
                            const at::Tensor& indices, const at::Tensor& weights) {
    context->save_for_backward({indices, weights});
    context->saved_data["rows"] = table.size(0);
    const auto accumulate_type = at::toOpMathType(table.scalar_type());
    at::Tensor sum;
    for (int64_t k = 0; k < indices.size(0); ++k) {
      const at::Tensor rows = table.index_select(0, indices[k]), weight = weights[k].unsqueeze(1).to(accumulate_type);
      sum = k == 0 ? rows * weight : sum.addcmul_(rows.to(accumulate_type), weight);
    }
    return sum.to(table.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &indices = saved[0], &weights = saved[1], &gradient = gradients[0];
    const auto accumulate_type = at::toOpMathType(gradient.scalar_type());
    at::Tensor sum;
    for (int64_t k = 0; k < indices.size(0); ++k) {
      const at::Tensor tap_gradient = at::embedding_dense_backward(
          gradient * weights[k].unsqueeze(1).to(accumulate_type), indices[k], context->saved_data["rows"].toInt(),
          /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
      sum = k == 0 ? tap_gradient : sum.add_(tap_gradient);
    }
    return {sum.to(gradient.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor weighted_row_sum(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& weights) {
  return WeightedRows::apply(table, indices, weights);
}

}  // namespace vlmtrain::nn
