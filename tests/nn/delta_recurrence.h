#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

/// Inputs of the delta rule for the rows of a stream. Query and key have as many heads as the value.
struct RecurrenceInputs {
  at::Tensor query, key;       ///< [rows, heads, key_dim]; the query with its scale
  at::Tensor value;            ///< [rows, heads, value_dim]
  at::Tensor log_decay, beta;  ///< [rows, heads]
};

struct RecurrenceOutput {
  at::Tensor value;   ///< [rows, heads, value_dim]
  at::Tensor states;  ///< after the last row of each segment, [segments, heads, key_dim, value_dim]
};

/// Computes the gated delta rule row by row, from state 0 in each segment. Records gradients.
inline RecurrenceOutput run_recurrence(const RecurrenceInputs& inputs, const std::vector<int64_t>& lengths) {
  // One gradient per tensor in place of one per row.
  const auto query = inputs.query.unbind(), key = inputs.key.unbind(), value = inputs.value.unbind();
  const auto log_decay = inputs.log_decay.unbind(), beta = inputs.beta.unbind();
  std::vector<at::Tensor> outputs, states;
  size_t row = 0;
  for (const int64_t length : lengths) {
    at::Tensor state =
        at::zeros({inputs.key.size(1), inputs.key.size(2), inputs.value.size(2)}, inputs.value.options());
    for (int64_t i = 0; i < length; ++i, ++row) {
      state = state * log_decay[row].exp().view({-1, 1, 1});
      const at::Tensor prediction = at::einsum("hkv,hk->hv", {state, key[row]});
      const at::Tensor correction = (value[row] - prediction) * beta[row].unsqueeze(-1);
      state = state + at::einsum("hk,hv->hkv", {key[row], correction});
      outputs.push_back(at::einsum("hkv,hk->hv", {state, query[row]}));
    }
    states.push_back(state);
  }
  return {at::stack(outputs), at::stack(states)};
}

}  // namespace vlmtrain::nn
