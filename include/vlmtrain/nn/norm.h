#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/operand.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// y = (x − mean) / sqrt(variance + eps) · w + b over the last dimension; statistics in fp32.
class LayerNorm {
 public:
  LayerNorm(const ParameterScope& scope, int64_t features, double eps);

  /// x [rows, features] as Linears read it; x is kept, not y.
  LinearInput make_linear_input(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

/// What an RmsNorm multiplies by.
enum class NormGain : uint8_t {
  kWeight,
  kOnePlusWeight,  ///< the weight is the gain's distance from 1 (Gemma Team 2025, arXiv 2503.19786). 1 + w is never
                   ///< rounded to the weight's type, in which it would lose the low bits of w
};

/// y = x / sqrt(mean(x²) + eps) · gain over the last dimension (Zhang and Sennrich 2019, arXiv 1910.07467); statistics
/// in fp32.
class RmsNorm {
 public:
  RmsNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain = NormGain::kWeight);

  /// x [rows, features] as Linears read it; x is kept, not y.
  LinearInput make_linear_input(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  at::Tensor weight_;
  double eps_;
  NormGain gain_;
};

}  // namespace vlmtrain::nn
