#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/optimizer/update_rule.h"

namespace vlmtrain::engine {

/// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) with Nesterov's momentum,
/// as torch.optim.Muon of PyTorch 2.11, for the weights of Linears and of their adapters. It has the
/// moment `momentum`, in fp32.
extern const UpdateRuleEntry kMuonRule;

/// Memory for orthogonalize().
struct NewtonSchulzBuffers {
  /// Allocates buffers for matrices of at most `max_elements` elements whose smaller dimension is at
  /// most `max_rank`, on the device of `options`.
  NewtonSchulzBuffers(int64_t max_elements, int64_t max_rank, const at::TensorOptions& options);

  at::Tensor matrices[2];  ///< bf16 [max_elements]
  at::Tensor grams[2];     ///< bf16 [max_rank²]
  at::Tensor norm;         ///< bf16 scalar
};

/// Returns an approximation of U Vᵀ of the singular value decomposition U S Vᵀ of `matrix`, fp32
/// [rows, columns], in bf16: `num_steps` iterations of Newton and Schulz with the quintic polynomial
/// of Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/), which brings the singular
/// values close to 1. Equal to torch.optim.Muon of PyTorch 2.11 bit by bit on one thread. The result
/// is a view of `buffers`. Allocates no tensor.
at::Tensor orthogonalize(const at::Tensor& matrix, int64_t num_steps, const NewtonSchulzBuffers& buffers);

}  // namespace vlmtrain::engine
