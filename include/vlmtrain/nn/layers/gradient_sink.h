#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <vector>

namespace vlmtrain::nn {

/// A post-accumulate hook of a parameter that holds the sum of the parameter's gradients. A
/// backward function may add a gradient to sum() itself, in the sum's precision and without a
/// temporary tensor. Other gradients arrive through autograd. The hook runs after all uses of the
/// parameter in a backward pass, also if autograd has no gradient for it. Not thread-safe.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Returns the sum, fp32 in the parameter's shape; undefined if gradients must arrive through
  /// autograd.
  virtual at::Tensor sum() const = 0;
  /// Returns whether sum() has a value to add to; if not, its contents are uninitialized.
  virtual bool has_sum() const = 0;
  /// Declares that sum() has a value. Must be called after writing to it.
  virtual void set_has_sum() = 0;
};

/// Adds a · bᵀ, for a [m, k] and b [n, k] of one dtype, to the sums of `parameters`. The gradients
/// of the parameters are consecutive rows of the product. On CUDA, 16-bit products are not rounded
/// before the addition. Returns false and does nothing if a parameter has no sink, if the sums are
/// not adjacent in memory, or if only some of them have a value.
bool add_product_to_gradient_sums(const std::vector<at::Tensor>& parameters, const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
