#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "nn/layers/linear_group.h"
#include "vlmtrain/nn/layers/dropout.h"

namespace vlmtrain::nn {

/// The tensors that autograd saves for the backward pass of a LinearGroup. Its node frees them as
/// soon as it has run.
struct LinearSavedState {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> statistics;
  std::vector<at::Tensor> lora_hidden;  // per adapter: scale · dropout(x) Aᵀ, [rows, rank]
  IndependentDropouts dropout;          // masks of the adapters' inputs

  /// Moves the tensors into `context`.
  void save(torch::autograd::AutogradContext* context);

  /// Returns the tensors saved in `context`.
  static LinearSavedState load(torch::autograd::AutogradContext* context);
};

/// Returns the sum of the adapters' ranks.
int64_t compute_total_rank(const std::vector<const LoraAdapter*>& adapters);

/// Returns the adapters' A as one view [sum of ranks, in]; undefined unless they are adjacent in memory.
at::Tensor merge_a(const std::vector<const LoraAdapter*>& adapters);

/// Splits `all`, whose dimension `dimension` is the sum of ranks, into one view per adapter.
std::vector<at::Tensor> split_by_adapter(const at::Tensor& all, int64_t dimension,
                                         const std::vector<const LoraAdapter*>& adapters);

/// The backward pass of one call of a LinearGroup. The group and the prologue must outlive it.
class LinearBackward {
 public:
  /// `gradient` [rows, out]; `needs_grad`: which inputs need gradients; `prologue`: null for a
  /// plain input.
  LinearBackward(const LinearGroup& group, const FusedPrologue* prologue, LinearSavedState saved,
                 const at::Tensor& gradient, std::vector<bool> needs_grad);

  /// Returns the gradients of the inputs, the residual and the trained tensors, in the order of the
  /// forward call. `stream_gradient`, if defined, is added to that of the first input.
  std::vector<at::Tensor> gradients(bool has_residual, const at::Tensor& stream_gradient);

 private:
  bool needs_value() const;

  /// Computes scale · gradient · B of each adapter, [rows, rank].
  void project_gradient();

  std::vector<at::Tensor> compute_parameter_gradients() const;

  /// Returns a · bᵀ, the gradients of `parameters` as consecutive rows. Returns an undefined tensor
  /// if the gradient sinks took the product.
  static at::Tensor accumulate_or_multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& a,
                                           const at::Tensor& b);

  /// Returns one gradient per member; undefined if not trained or taken by a sink.
  std::vector<at::Tensor> compute_weight_gradients() const;

  /// Returns one gradient per adapter; undefined if not trained or taken by a sink.
  std::vector<at::Tensor> compute_a_gradients() const;

  std::vector<at::Tensor> compute_input_gradients(const at::Tensor& stream_gradient) const;

  /// Returns gradient · W. Dequantized weights are freed on return.
  at::Tensor multiply_weight() const;

  at::Tensor compute_value_gradient() const;

  const LinearGroup& group_;
  const FusedPrologue* prologue_;
  LinearSavedState saved_;
  at::Tensor gradient_;           // [rows, out]
  std::vector<bool> needs_grad_;  // per input
  std::vector<const LoraAdapter*> adapters_;
  FusedPrologue::Output prologue_output_;
  at::Tensor all_lora_gradients_;
  std::vector<at::Tensor> lora_gradients_;  // views of all_lora_gradients_, one per adapter
};

}  // namespace vlmtrain::nn
