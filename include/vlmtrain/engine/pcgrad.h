#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::engine {

/// The order in which each of `tasks` is held against the others: int64 [tasks − 1, tasks] on the CPU; column i is a
/// permutation of all but i. A function of the seed.
at::Tensor pcgrad_orders(int64_t tasks, uint64_t seed);

/// PCGrad (Yu et al. 2020, arXiv 2001.06782, algorithm 1) in terms of inner products: each task's gradient loses, for
/// each other task in its order, its part along that task's own gradient where the two point against each other. What
/// is left of all adds up to Σ_j c_j g_j.
/// `products` fp64 [tasks, tasks] holds g_i · g_j; → c, fp64 [tasks], on the same device as both arguments. A gradient
/// that is zero is in nobody's way.
at::Tensor pcgrad_coefficients(const at::Tensor& products, const at::Tensor& orders);

/// The gradients of some tasks beside each other, in one buffer [tasks, elements] of fp32. Nothing is read back.
class TaskGradients {
 public:
  /// `elements` of each tensor.
  TaskGradients(int64_t tasks, const std::vector<int64_t>& elements, const at::TensorOptions& options);

  int64_t tasks() const { return buffer_.size(0); }

  /// The task's gradient of a tensor, fp32 [elements], in the buffer.
  at::Tensor of(int64_t task, size_t tensor) const;

  /// PCGrad over all tensors together; the result stands in the place of task 0.
  void resolve_conflicts(uint64_t seed);

  void set_to_zero();

 private:
  at::Tensor products() const;

  at::Tensor buffer_;
  std::vector<int64_t> elements_, first_;  // of each tensor
};

}  // namespace vlmtrain::engine
