#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {

/// The weights, biases and adapters of Linears. Immutable.
struct LinearGroup {
  /// One Linear of the group.
  struct Member {
    LinearWeight weight;
    at::Tensor bias;  // [columns]; undefined without biases
    std::optional<LoraAdapter> adapter;
    int64_t first_column, columns;  // columns of the result that belong to it

    /// Returns whether the weight needs a gradient.
    bool trains_weight() const { return !weight.is_quantized() && weight.values().requires_grad(); }
    /// Returns whether the bias needs a gradient.
    bool trains_bias() const { return bias.defined() && bias.requires_grad(); }
    /// Returns the member's columns of a result or gradient: a view [rows, columns] of [rows, out].
    at::Tensor slice_columns(const at::Tensor& rows) const { return rows.narrow(1, first_column, columns); }
  };

  std::vector<Member> members;

  /// Returns the number of columns of the result of all members.
  int64_t columns() const { return members.back().first_column + members.back().columns; }
  /// Returns whether the members have biases: all of them or none.
  bool has_bias() const { return members.front().bias.defined(); }
  /// Returns the weights of all members, each [columns, in], without gradients: the tensors
  /// themselves, or new dequantized tensors. Returns an empty vector if the members must be
  /// dequantized one at a time.
  std::vector<at::Tensor> weights() const;
  /// Returns the biases of all members as one view [out], without gradients; undefined if there are
  /// none or they are not adjacent.
  at::Tensor make_merged_bias() const;
  /// Returns whether any adapter uses DoRA.
  bool has_dora() const;
  /// Returns the adapters of the members that have one, in order.
  std::vector<const LoraAdapter*> adapters() const;
};

/// Implements MergedLinear::operator() for a group without DoRA.
at::Tensor apply_linear_group(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x,
                              const at::Tensor& residual);

/// Implements MergedLinear::forward_branch() for a group without DoRA and an input with a prologue
/// whose first input needs a gradient.
ResidualBranch apply_linear_branch(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x);

}  // namespace vlmtrain::nn
