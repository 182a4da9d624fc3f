#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <vector>

namespace vlmtrain::nn {

/// A post-accumulate hook of a parameter that holds the sum of its gradients. A backward function
/// may add a gradient to sum() itself, in the sum's precision and without a temporary tensor. Other
/// gradients arrive through autograd. The hook runs after all uses of the parameter in a backward
/// pass, with or without a gradient. Not thread-safe.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Returns the sum, fp32 in the parameter's shape; undefined if gradients must arrive through
  /// autograd.
  virtual at::Tensor sum() const = 0;
  /// Returns whether sum() has a value to add to; else its contents are undefined.
  virtual bool has_sum() const = 0;
  /// Marks sum() as written.
  virtual void set_has_sum() = 0;
};

/// Adds a · bᵀ, with a [m, k] and b [n, k] of one dtype, to the sums of parameters whose gradients
/// are its consecutive rows. On CUDA 16-bit products are added without rounding first. Returns
/// false and does nothing if a parameter has no sink or the sums are not adjacent.
bool add_product_to_sums(const std::vector<at::Tensor>& parameters, const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
