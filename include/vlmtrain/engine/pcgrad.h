#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/engine/gradients/gradient_buckets.h"

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

/// PCGrad over all tensors together, of gradients whose groups are tasks: the result stands in the place of group 0.
/// Nothing is read back. `seed`: of the orders in which they are compared.
void resolve_conflicts(GradientBuckets& buckets, uint64_t seed);

}  // namespace vlmtrain::engine
