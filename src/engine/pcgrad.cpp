#include "vlmtrain/engine/pcgrad.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "vlmtrain/base/rng.h"
#include "vlmtrain/memory/copy.h"

namespace vlmtrain::engine {

namespace {

/// Tensors begin where the allocator would let them begin.
constexpr int64_t kAlignment = 128;
/// Elements of each task that are multiplied at a time.
constexpr int64_t kPiece = int64_t{1} << 22;

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

TaskGradients::TaskGradients(int64_t tasks, const std::vector<int64_t>& elements, const at::TensorOptions& options)
    : elements_(elements) {
  int64_t end = 0;
  for (const int64_t count : elements) {
    first_.push_back(end);
    end += (count + kAlignment - 1) / kAlignment * kAlignment;
  }
  buffer_ = at::zeros({tasks, end}, options.dtype(at::kFloat));
}

at::Tensor TaskGradients::of(int64_t task, size_t tensor) const {
  return buffer_.select(0, task).narrow(0, first_.at(tensor), elements_.at(tensor));
}

at::Tensor TaskGradients::products() const {
  const at::Tensor upper = at::zeros({tasks(), tasks()}, buffer_.options().dtype(at::kDouble));
  for (int64_t first = 0; first < buffer_.size(1); first += kPiece) {
    const at::Tensor piece = buffer_.narrow(1, first, std::min(kPiece, buffer_.size(1) - first));
    for (int64_t task = 0; task < tasks(); ++task) {
      const at::Tensor others = piece.narrow(0, task, tasks() - task);
      upper.select(0, task).narrow(0, task, tasks() - task).add_((others * piece.select(0, task)).sum(1));
    }
  }
  return upper + upper.triu(1).t();
}

void TaskGradients::resolve_conflicts(uint64_t seed) {
  const at::Tensor orders = memory::copy_to_device(pcgrad_orders(tasks(), seed), buffer_.device());
  const at::Tensor factors = pcgrad_coefficients(products(), orders).to(at::kFloat);
  const at::Tensor sum = buffer_.select(0, 0);
  sum.mul_(factors.select(0, 0));
  for (int64_t task = 1; task < tasks(); ++task) sum.addcmul_(buffer_.select(0, task), factors.select(0, task));
}

void TaskGradients::set_to_zero() {
  buffer_.zero_();
}

}  // namespace vlmtrain::engine
