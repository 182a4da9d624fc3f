#include "vlmtrain/nn/layers/gradient_sink.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/variable.h>

#include "nn/adjacent_tensors.h"
#include "vlmtrain/nn/layers/matmul.h"

namespace vlmtrain::nn {

namespace {

/// Returns the sink of a parameter; null if it has none.
GradientSink* find_sink(const at::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  return dynamic_cast<GradientSink*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

/// Adds a · bᵀ to `sum` with cuBLAS, or writes it if `has_sum` is false. 16-bit factors have an
/// fp32 result.
void add_product_cublas(at::Tensor sum, bool has_sum, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor factor = b.t();
  if (a.scalar_type() == at::kFloat) {
    has_sum ? at::addmm_out(sum, sum, a, factor) : at::mm_out(sum, a, factor);
  } else {
    has_sum ? at::addmm_out(sum, sum, a, factor, at::kFloat) : at::mm_out(sum, a, factor, at::kFloat);
  }
}

}  // namespace

bool add_product_to_gradient_sums(const std::vector<at::Tensor>& parameters, const at::Tensor& a, const at::Tensor& b) {
  std::vector<GradientSink*> sinks;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& parameter : parameters) {
    GradientSink* const sink = find_sink(parameter);
    if (sink == nullptr) return false;
    sinks.push_back(sink);
    sums.push_back(sink->sum());
    if (!sums.back().defined() || sink->has_sum() != sinks.front()->has_sum()) return false;
  }
  const at::Tensor sum = view_adjacent_tensors(sums);
  if (!sum.defined()) return false;
  const at::NoGradGuard no_gradients;
  const bool has_sum = sinks.front()->has_sum();
  if (sum.is_cuda()) {
    add_product_cublas(sum, has_sum, a, b);
  } else {
    const at::Tensor product = matmul_transposed(a, b);
    has_sum ? sum.add_(product) : sum.copy_(product);
  }
  for (GradientSink* const sink : sinks) sink->set_has_sum();
  return true;
}

}  // namespace vlmtrain::nn
