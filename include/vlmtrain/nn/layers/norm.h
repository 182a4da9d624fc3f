#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// A layer norm: y = (x − mean) / sqrt(variance + eps) · w + b over the last dimension, with
/// statistics in fp32.
class LayerNorm {
 public:
  /// Adds the parameters `weight` and `bias` [features] under `scope`.
  LayerNorm(const ParameterScope& scope, int64_t features, double eps);

  /// Returns the norm of x [rows, features] as input of Linears. Saves x, not y.
  LinearInput make_linear_input(const at::Tensor& x) const;
  /// Returns the norm of x [rows, features] as a tensor. Saves x, not y.
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

/// The gain by which an RmsNorm multiplies its result.
enum class NormGain : uint8_t {
  kWeight,
  kOnePlusWeight,  ///< 1 + weight (Gemma Team 2025, arXiv 2503.19786); the sum is not rounded to the weight's dtype,
                   ///< which would lose low bits
};

/// An RMS norm: y = x / sqrt(mean(x²) + eps) · gain over the last dimension (Zhang and Sennrich
/// 2019, arXiv 1910.07467), with statistics in fp32.
class RmsNorm {
 public:
  /// Adds the parameter `weight` [features] under `scope`.
  RmsNorm(const ParameterScope& scope, int64_t features, double eps, NormGain gain = NormGain::kWeight);

  /// Returns the norm of x [rows, features] as input of Linears. Saves x, not y.
  LinearInput make_linear_input(const at::Tensor& x) const;
  /// Returns the norm of x [rows, features] as a tensor. Saves x, not y.
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  at::Tensor weight_;
  double eps_;
  NormGain gain_;
};

/// The result of rms_norm().
struct RmsNormResult {
  at::Tensor value;  ///< dtype and shape of x
  at::Tensor rstd;   ///< 1 / sqrt(mean(x²) + eps), [..., 1]; fp32, or fp64 for fp64
};

/// Returns x / sqrt(mean(x²) + eps) · weight over the last dimension of a contiguous x; an
/// undefined weight counts as 1. Records no gradients.
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Returns x / sqrt(mean(x²) + eps) over the last dimension, of the shape of x. Records gradients, for
/// which it saves x and rstd.
at::Tensor rms_norm_without_weight(const at::Tensor& x, double eps);

/// Multiplies `value` [..., features] in place by the gain: `weight` or 1 + `weight`, [features].
void multiply_by_gain(at::Tensor& value, const at::Tensor& weight, NormGain gain);

/// Returns the initial values of a weight for which the gain is 1.
InitialValues make_unit_gain_values(NormGain gain);

/// The result of rms_norm_backward().
struct RmsNormGradients {
  at::Tensor dx, dweight;  ///< undefined unless requested
};

/// Returns the gradients of rms_norm()'s inputs, given `gradient`, the gradient of its value, and
/// `rstd` of its result. REQUIRES: `gradient` is contiguous; `weight` is defined if
/// `needs_dweight`.
RmsNormGradients rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& rstd,
                                   const at::Tensor& weight, bool needs_dx, bool needs_dweight);

}  // namespace vlmtrain::nn
