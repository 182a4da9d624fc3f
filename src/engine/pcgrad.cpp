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
constexpr int64_t kPiece = int64_t{1} << 22;
/// Kernels are fastest where tensors begin like this.
constexpr int64_t kProductAlignment = 128;

/// Where each sum begins if all are laid end to end, and where the last one ends.
std::vector<int64_t> end_to_end(const GradientSums& sums) {
  std::vector<int64_t> places{0};
  for (size_t i = 0; i < sums.size(); ++i) {
    places.push_back(places.back() +
                     (sums.elements(i) + kProductAlignment - 1) / kProductAlignment * kProductAlignment);
  }
  return places;
}

/// The products of a group's gradient, element by element, with its own and those of the groups behind it, of what lies
/// from `first` on in all tensors laid end to end: into `products` [groups from this one on, elements].
void multiply(const GradientSums& sums, const std::vector<int64_t>& places, int64_t first, int64_t group,
              const at::Tensor& products) {
  std::vector<at::Tensor> found, own, others;
  for (size_t i = 0; i < sums.size(); ++i) {
    const int64_t start = std::max(first, places[i]);
    const int64_t count = std::min(first + products.size(1), places[i] + sums.elements(i)) - start;
    if (count <= 0 || !sums.received(i, group)) continue;
    for (int64_t other = group; other < sums.groups(); ++other) {
      if (!sums.received(i, other)) continue;
      found.push_back(products.select(0, other - group).narrow(0, start - first, count));
      own.push_back(sums.sum(i, group).view(-1).narrow(0, start - places[i], count));
      others.push_back(sums.sum(i, other).view(-1).narrow(0, start - places[i], count));
    }
  }
  if (found.empty()) return;
  at::_foreach_copy_(found, others);
  at::_foreach_mul_(found, own);
}

/// g_i · g_j, fp64 [groups, groups]. Added up in the store's order, so that it does not depend on how sums are stored.
at::Tensor products_of(const GradientSums& sums) {
  const int64_t groups = sums.groups();
  const auto places = end_to_end(sums);
  const at::Tensor upper = at::zeros({groups, groups}, sums.options().dtype(at::kDouble));
  for (int64_t first = 0; first < places.back(); first += kPiece) {
    for (int64_t group = 0; group < groups; ++group) {
      const at::Tensor products = at::zeros({groups - group, std::min(kPiece, places.back() - first)}, sums.options());
      multiply(sums, places, first, group, products);
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
    const auto order = permutation(tasks - 1, stream_seed(seed, "pcgrad", {static_cast<uint64_t>(task)}));
    for (int64_t i = 0; i < tasks - 1; ++i) {
      const int64_t other = order[static_cast<size_t>(i)];
      values[i * tasks + task] = other < task ? other : other + 1;
    }
  }
  return orders;
}

at::Tensor pcgrad_coefficients(const at::Tensor& products, const at::Tensor& orders) {
  // Row i: what task i's gradient is made of.
  const at::Tensor made_of = at::eye(products.size(0), products.options());
  const at::Tensor squares = products.diagonal().clamp_min(std::numeric_limits<double>::min());
  for (int64_t i = 0; i < orders.size(0); ++i) {
    const at::Tensor other = orders.select(0, i);
    const at::Tensor along = (made_of * products.index_select(0, other)).sum(1);
    const at::Tensor against = along.clamp_max(0.0) / squares.index_select(0, other);
    made_of.scatter_add_(1, other.unsqueeze(1), against.neg().unsqueeze(1));
  }
  return made_of.sum(0);
}

void resolve_conflicts(GradientSums& sums, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const memory::InComponent optimizer(memory::Component::kOptimizer);
  const at::Tensor found = products_of(sums);
  const at::Tensor orders = memory::copy_to_device(pcgrad_orders(sums.groups(), seed), found.device());
  sums.combine(pcgrad_coefficients(found, orders).to(at::kFloat));
}

}  // namespace vlmtrain::engine
