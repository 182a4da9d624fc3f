#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/nn/layers/lora_adapter.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/linear_weight.h"
#include "vlmtrain/nn/operand.h"

namespace vlmtrain::nn {

/// What Linears consist of.
struct LinearGroup {
  struct Member {
    LinearWeight weight;
    at::Tensor bias;  // undefined: none
    std::optional<LoraAdapter> adapter;
    int64_t first_column, columns;  // of the result

    bool trains_weight() const { return !weight.is_quantized() && weight.values().requires_grad(); }
    bool trains_bias() const { return bias.defined() && bias.requires_grad(); }
    /// Its columns of a result or of its gradient, [rows, out] → [rows, columns].
    at::Tensor slice(const at::Tensor& rows) const { return rows.narrow(1, first_column, columns); }
  };

  std::vector<Member> members;

  int64_t columns() const { return members.back().first_column + members.back().columns; }
  bool has_bias() const { return members.front().bias.defined(); }
  /// The weights of all parts, each [out, in], without gradients: they themselves, or what is dequantised of all at
  /// once, which only the caller holds. Empty where that is made of one at a time.
  std::vector<at::Tensor> weights() const;
  /// The biases of all parts, [out], without gradients; undefined where they do not lie end to end.
  at::Tensor merged_bias() const;
  bool has_dora() const;
  /// Of the parts that have one, in order.
  std::vector<const LoraAdapter*> adapters() const;
};

/// Linears::operator(), for a group without DoRA.
at::Tensor apply_linear_group(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x,
                              const at::Tensor& residual);

/// Linears::branch(), for such a group and an operand with a prologue whose first input needs a gradient.
Branch apply_linear_branch(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x);

}  // namespace vlmtrain::nn
