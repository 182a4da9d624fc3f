#include "nn/layers/group_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "nn/adjacent_tensors.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

using Member = LinearGroup::Member;

GroupWeights::GroupWeights(const LinearGroup& group, int64_t input_columns, WeightBorder border)
    : group_(group), input_columns_(input_columns) {
  const at::NoGradGuard no_gradients;
  if (group.bordered_weights && group.bordered_weights->w().defined()) {
    const BorderedWeights& weights = *group.bordered_weights;
    if (border == WeightBorder::kB) merged_ = weights.w_and_b();
    if (border == WeightBorder::kA) merged_ = weights.w_and_a();
    if (border == WeightBorder::kNone) merged_ = weights.w().narrow(1, 0, input_columns);
    return;
  }
  const QuantizedWeights quantized_weights = collect_quantized_weights(group);
  if (quantized_weights.empty()) {
    for (const Member& member : group.members) members_.push_back(member.weight.values().detach());
  } else if (quantized_weights.size() == group.members.size()) {
    if (have_dequantize_kernels(quantized_weights)) {
      merged_ = dequantize_merged(quantized_weights, border);
      return;
    }
    members_ = group.members.size() == 1 ? std::vector{quantized_weights.front()->dequantize()}
                                         : dequantize_group(quantized_weights);
  }
  const at::Tensor merged = view_adjacent_tensors(members_, group.column_alignment);
  if (merged.defined()) merged_ = add_padding_columns(merged);
}

bool GroupWeights::can_have_border(const LinearGroup& group) {
  const BorderedWeights* const weights = group.find_border();
  if (weights == nullptr) return false;
  return weights->w().defined() || have_dequantize_kernels(collect_quantized_weights(group));
}

GroupWeights::QuantizedWeights GroupWeights::collect_quantized_weights(const LinearGroup& group) {
  QuantizedWeights weights;
  for (const Member& member : group.members) {
    if (member.weight.is_quantized()) weights.push_back(member.weight.quantized_weight());
  }
  return weights;
}

bool GroupWeights::have_dequantize_kernels(const QuantizedWeights& weights) {
  return std::ranges::all_of(weights, [](const auto& weight) { return weight->has_dequantize_kernel(); });
}

at::Tensor GroupWeights::member(size_t i) const {
  const at::NoGradGuard no_gradients;
  return add_padding_columns(members_.empty() ? group_.members[i].weight.values().detach() : members_[i]);
}

at::Tensor GroupWeights::dequantize_merged(const QuantizedWeights& weights, WeightBorder border) const {
  const int64_t border_size = border == WeightBorder::kNone ? 0 : group_.bordered_weights->border_columns();
  const int64_t columns = group_.columns();
  at::Tensor matrix = border == WeightBorder::kB ? at::empty({columns, input_columns_ + border_size}, group_.options)
                                                 : at::empty({columns + border_size, input_columns_}, group_.options);
  if (border == WeightBorder::kB) matrix.narrow(1, input_columns_, border_size).copy_(group_.bordered_weights->b());
  if (border == WeightBorder::kA) matrix.narrow(0, columns, border_size).copy_(group_.bordered_weights->a());
  std::vector<at::Tensor> results;
  for (const Member& member : group_.members) {
    results.push_back(matrix.narrow(0, member.first_column, member.columns).narrow(1, 0, input_columns_));
  }
  write_dequantized_group(weights, results);
  // A row of the weights belongs to a column of the result.
  group_.zero_padding_columns(matrix.narrow(0, 0, columns).t());
  return matrix;
}

at::Tensor GroupWeights::add_padding_columns(const at::Tensor& weight) const {
  // Only allocate_adjacent_matrices() makes such strides, with columns of zeros.
  const bool has_columns_of_zeros = weight.stride(0) == input_columns_;
  return has_columns_of_zeros ? weight.as_strided({weight.size(0), input_columns_}, weight.strides())
                              : pad_columns(weight, input_columns_);
}

}  // namespace vlmtrain::nn
