#include "vlmtrain/engine/pcgrad.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "vlmtrain/base/rng.h"
#include "vlmtrain/memory/copy.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

namespace {

/// Elements of each task that are multiplied at a time.
constexpr int64_t kProductChunkElements = int64_t{1} << 22;
/// Kernels are fastest where tensors begin like this.
constexpr int64_t kOffsetAlignment = 128;

/// Where each sum begins if all are laid end to end, and where the last one ends.
std::vector<int64_t> compute_padded_offsets(const GradientBuckets& buckets) {
  std::vector<int64_t> offsets{0};
  for (size_t i = 0; i < buckets.size(); ++i) {
    offsets.push_back(offsets.back() +
                      (buckets.elements(i) + kOffsetAlignment - 1) / kOffsetAlignment * kOffsetAlignment);
  }
  return offsets;
}

/// The products of a group's gradient, element by element, with its own and those of the groups behind it, of what lies
/// from `first` on in all tensors laid end to end: into `products` [groups from this one on, elements].
void multiply_groups(const GradientBuckets& buckets, const std::vector<int64_t>& offsets, int64_t first, int64_t group,
                     const at::Tensor& products) {
  std::vector<at::Tensor> targets, group_gradients, other_gradients;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t start = std::max(first, offsets[i]);
    const int64_t count = std::min(first + products.size(1), offsets[i] + buckets.elements(i)) - start;
    if (count <= 0 || !buckets.has_gradient(i, group)) continue;
    for (int64_t other_group = group; other_group < buckets.groups(); ++other_group) {
      if (!buckets.has_gradient(i, other_group)) continue;
      targets.push_back(products.select(0, other_group - group).narrow(0, start - first, count));
      group_gradients.push_back(buckets.sum(i, group).view(-1).narrow(0, start - offsets[i], count));
      other_gradients.push_back(buckets.sum(i, other_group).view(-1).narrow(0, start - offsets[i], count));
    }
  }
  if (targets.empty()) return;
  at::_foreach_copy_(targets, other_gradients);
  at::_foreach_mul_(targets, group_gradients);
}

/// g_i · g_j, fp64 [groups, groups]. Added up in the store's order, so that it does not depend on how sums are stored.
at::Tensor compute_products(const GradientBuckets& buckets) {
  const int64_t groups = buckets.groups();
  const auto offsets = compute_padded_offsets(buckets);
  const at::Tensor upper = at::zeros({groups, groups}, buckets.options().dtype(at::kDouble));
  for (int64_t first = 0; first < offsets.back(); first += kProductChunkElements) {
    for (int64_t group = 0; group < groups; ++group) {
      const at::Tensor products =
          at::zeros({groups - group, std::min(kProductChunkElements, offsets.back() - first)}, buckets.options());
      multiply_groups(buckets, offsets, first, group, products);
      upper.select(0, group).narrow(0, group, groups - group).add_(products.sum(1));
    }
  }
  return upper + upper.triu(1).t();
}

}  // namespace

at::Tensor pcgrad_orders(int64_t tasks, uint64_t seed) {
  at::Tensor orders = at::empty({tasks - 1, tasks}, at::kLong);
  auto* const values = orders.mutable_data_ptr<int64_t>();
  for (int64_t task = 0; task < tasks; ++task) {
    const auto order = random_permutation(tasks - 1, derive_stream_seed(seed, "pcgrad", {static_cast<uint64_t>(task)}));
    for (int64_t i = 0; i < tasks - 1; ++i) {
      const int64_t other_task = order[static_cast<size_t>(i)];
      values[i * tasks + task] = other_task < task ? other_task : other_task + 1;
    }
  }
  return orders;
}

at::Tensor pcgrad_coefficients(const at::Tensor& products, const at::Tensor& orders) {
  // Row i: what task i's gradient is made of.
  const at::Tensor combination = at::eye(products.size(0), products.options());
  const at::Tensor squares = products.diagonal().clamp_min(std::numeric_limits<double>::min());
  for (int64_t i = 0; i < orders.size(0); ++i) {
    const at::Tensor other_task = orders.select(0, i);
    const at::Tensor projection = (combination * products.index_select(0, other_task)).sum(1);
    const at::Tensor correction = projection.clamp_max(0.0) / squares.index_select(0, other_task);
    combination.scatter_add_(1, other_task.unsqueeze(1), correction.neg().unsqueeze(1));
  }
  return combination.sum(0);
}

void resolve_conflicts(GradientBuckets& buckets, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const memory::ComponentScope optimizer(memory::Component::kOptimizer);
  const at::Tensor products = compute_products(buckets);
  const at::Tensor orders = memory::copy_to_device(pcgrad_orders(buckets.groups(), seed), products.device());
  buckets.combine(pcgrad_coefficients(products, orders).to(at::kFloat));
}

}  // namespace vlmtrain::engine
