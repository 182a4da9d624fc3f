#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <vector>

namespace vlmtrain::nn {

/// Where the gradients of a parameter are summed, as its post-accumulate hook: whoever makes a gradient may add it
/// there itself, in the precision of the sum and without a tensor of its own. Otherwise it comes by autograd. The hook
/// is called when all uses of the parameter in a backward pass are done, with a gradient or without. Not thread-safe.
class GradientSink : public torch::autograd::PostAccumulateGradHook {
 public:
  /// fp32, in the parameter's shape; undefined where gradients have to come by autograd.
  virtual at::Tensor sum() const = 0;
  /// Whether sum() is to be added to; else what it holds is nothing.
  virtual bool has_sum() const = 0;
  /// Says that sum() was written.
  virtual void set_has_sum() = 0;
};

/// Adds a · bᵀ, a [m, k] and b [n, k] of one dtype, to the sums of parameters whose gradients are its rows one behind
/// the other; of 16 bits on CUDA it is not rounded before. False, and nothing was done, where they have no sinks, or
/// not one behind the other.
bool add_product_to_sums(const std::vector<at::Tensor>& parameters, const at::Tensor& a, const at::Tensor& b);

}  // namespace vlmtrain::nn
