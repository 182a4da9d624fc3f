#include "vlmtrain/engine/pcgrad.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
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
/// Copies are fastest to and from places like this.
constexpr int64_t kCopyAlignment = 128;

/// What of a tensor lies where, if all are laid end to end.
struct Extent {
  size_t number;
  int64_t first, end;
};

std::vector<Extent> end_to_end(const GradientSums& sums) {
  std::vector<Extent> extents;
  int64_t first = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    extents.push_back({i, first, first + sums.elements(i)});
    first = (extents.back().end + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
  }
  return extents;
}

/// Copies what of the sums lies from `first` on into `piece` [groups, elements]; the rest is 0.
void gather(const GradientSums& sums, const std::vector<Extent>& extents, int64_t first, const at::Tensor& piece) {
  std::vector<at::Tensor> to, from;
  for (const auto& extent : extents) {
    const int64_t start = std::max(first, extent.first);
    const int64_t count = std::min(first + piece.size(1), extent.end) - start;
    for (int64_t group = 0; group < sums.groups() && count > 0; ++group) {
      if (!sums.received(extent.number, group)) continue;
      to.push_back(piece.select(0, group).narrow(0, start - first, count));
      from.push_back(sums.sum(extent.number, group).view(-1).narrow(0, start - extent.first, count));
    }
  }
  piece.zero_();
  if (!to.empty()) at::_foreach_copy_(to, from);
}

/// g_i · g_j, fp64 [groups, groups]. Summed in the store's order, so that it does not depend on how sums are stored.
at::Tensor products_of(const GradientSums& sums) {
  const int64_t groups = sums.groups();
  const auto extents = end_to_end(sums);
  const int64_t end = (extents.back().end + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
  const at::Tensor upper = at::zeros({groups, groups}, sums.options().dtype(at::kDouble));
  const at::Tensor room = at::empty({groups * std::min(kPiece, end)}, sums.options());
  for (int64_t first = 0; first < end; first += kPiece) {
    const int64_t elements = std::min(kPiece, end - first);
    const at::Tensor piece = room.narrow(0, 0, groups * elements).view({groups, elements});
    gather(sums, extents, first, piece);
    for (int64_t group = 0; group < groups; ++group) {
      const at::Tensor others = piece.narrow(0, group, groups - group);
      upper.select(0, group).narrow(0, group, groups - group).add_((others * piece.select(0, group)).sum(1));
    }
  }
  return upper + upper.triu(1).t();
}

}  // namespace

at::Tensor pcgrad_orders(int64_t tasks, uint64_t seed) {
  const at::Tensor orders = at::empty({tasks - 1, tasks}, at::kLong);
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
