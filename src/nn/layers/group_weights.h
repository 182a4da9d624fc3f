#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/layers/linear_group.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {

/// The weights of a LinearGroup in the form in which one matrix product reads them, without
/// gradients. Holds dequantized weights and copies with columns of zeros for its lifetime.
class GroupWeights {
 public:
  /// `input_columns`: columns of the group's input, in_features or more; those beyond are zero.
  /// REQUIRES: unless `border` is kNone, can_have_border(group), and `input_columns` is that of the
  /// BorderedWeights.
  GroupWeights(const LinearGroup& group, int64_t input_columns, WeightBorder border);

  /// Returns whether weights with a border are available without a copy of the weights.
  static bool can_have_border(const LinearGroup& group);

  /// Returns the weights of all members as one matrix [group.columns(), input_columns], zero in the
  /// rows and columns that belong to no member, and the border; undefined if the products must be
  /// computed member by member.
  const at::Tensor& merged() const { return merged_; }

  /// Returns the weight of member i, [member.columns, input_columns]. REQUIRES: merged() is
  /// undefined.
  at::Tensor member(size_t i) const;

 private:
  using QuantizedWeights = std::vector<std::shared_ptr<const QuantizedWeight>>;

  static QuantizedWeights collect_quantized_weights(const LinearGroup& group);
  static bool have_dequantize_kernels(const QuantizedWeights& weights);
  at::Tensor dequantize_merged(const QuantizedWeights& weights, WeightBorder border) const;
  at::Tensor add_padding_columns(const at::Tensor& weight) const;

  const LinearGroup& group_;
  int64_t input_columns_;
  at::Tensor merged_;
  std::vector<at::Tensor> members_;  // [member.columns, in_features]; empty: dequantized one at a time
};

}  // namespace vlmtrain::nn
