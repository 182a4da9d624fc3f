#include "nn/layers/group_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "nn/adjacent_tensors.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

using Member = LinearGroup::Member;

GroupWeights::GroupWeights(const LinearGroup& group, int64_t input_columns)
    : group_(group), input_columns_(input_columns) {
  const at::NoGradGuard no_gradients;
  QuantizedWeights quantized_weights;
  for (const Member& member : group.members) {
    if (member.weight.is_quantized()) quantized_weights.push_back(member.weight.quantized_weight());
  }
  if (quantized_weights.empty()) {
    for (const Member& member : group.members) members_.push_back(member.weight.values().detach());
  } else if (quantized_weights.size() == group.members.size()) {
    if (std::ranges::all_of(quantized_weights, [](const auto& weight) { return weight->has_dequantize_kernel(); })) {
      merged_ = dequantize_merged(quantized_weights);
      return;
    }
    members_ = group.members.size() == 1 ? std::vector{quantized_weights.front()->dequantize()}
                                         : dequantize_group(quantized_weights);
  }
  const at::Tensor merged = view_adjacent_tensors(members_, group.column_alignment);
  if (merged.defined()) merged_ = add_padding_columns(merged);
}

at::Tensor GroupWeights::member(size_t i) const {
  const at::NoGradGuard no_gradients;
  return add_padding_columns(members_.empty() ? group_.members[i].weight.values().detach() : members_[i]);
}

at::Tensor GroupWeights::dequantize_merged(const QuantizedWeights& weights) const {
  at::Tensor matrix = at::empty({group_.columns(), input_columns_}, group_.options);
  std::vector<at::Tensor> results;
  for (const Member& member : group_.members) {
    results.push_back(matrix.narrow(0, member.first_column, member.columns));
  }
  write_dequantized_group(weights, results);
  group_.zero_padding_columns(matrix.t());  // a row of the matrix belongs to a column of the result
  return matrix;
}

at::Tensor GroupWeights::add_padding_columns(const at::Tensor& weight) const {
  // Only allocate_adjacent_matrices() makes such strides, with columns of zeros.
  const bool has_columns_of_zeros = weight.stride(0) == input_columns_;
  return has_columns_of_zeros ? weight.as_strided({weight.size(0), input_columns_}, weight.strides())
                              : pad_columns(weight, input_columns_);
}

}  // namespace vlmtrain::nn
