#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/operand.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::nn {

/// y = (x − mean) / sqrt(variance + eps) · w + b over the last dimension; statistics in fp32.
class LayerNorm {
 public:
  LayerNorm(const ParameterScope& scope, int64_t features, double eps);

  /// x [rows, features] as Linears read it; x is kept, not y.
  Operand before_linears(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return before_linears(x).value(); }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

/// y = x / sqrt(mean(x²) + eps) · w over the last dimension (Zhang and Sennrich 2019, arXiv 1910.07467); statistics in
/// fp32.
class RmsNorm {
 public:
  RmsNorm(const ParameterScope& scope, int64_t features, double eps);

  /// x [rows, features] as Linears read it; x is kept, not y.
  Operand before_linears(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return before_linears(x).value(); }

 private:
  at::Tensor weight_;
  double eps_;
};

}  // namespace vlmtrain::nn
