#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "vlmtrain/nn/linear_weight.h"
#include "vlmtrain/nn/lora_adapter.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::nn {

/// x Wᵀ (+ b): x [rows, in], weight [out, in], bias [out] or undefined → [rows, out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// `linear` with parameters of its own: the weight quantised where the store's settings ask for it, and an adapter
/// where its LoraSettings do.
class Linear {
 public:
  /// `initial_gain` scales the random start, for the projections that end a residual branch.
  Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias, double initial_gain = 1);

  /// x [rows, in] → [rows, out]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  LinearWeight weight_;
  at::Tensor bias_;  // undefined: none
  std::optional<LoraAdapter> adapter_;
};

}  // namespace vlmtrain::nn
