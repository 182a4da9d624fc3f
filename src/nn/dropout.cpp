#include "vlmtrain/nn/dropout.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "nn/held.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local DropoutUnits units_of_thread;

at::Generator new_generator(at::Device device) {
  at::Generator shared = at::globalContext().defaultGenerator(device.is_cuda() ? device : at::kCPU);
  const std::lock_guard<std::mutex> lock(shared.mutex());
  return shared.clone();
}

/// Of the units of this thread's scope in `rows` of a tensor.
std::vector<kernels::DropoutStream> streams_of(int64_t rows, uint64_t layer) {
  VLMTRAIN_CHECK(units_of_thread && !units_of_thread->empty(), "dropout outside a DropoutScope");
  const auto& units = *units_of_thread;
  const int64_t shares = std::accumulate(units.begin(), units.end(), int64_t{0},
                                         [](int64_t sum, const DropoutUnit& unit) { return sum + unit.share; });
  std::vector<kernels::DropoutStream> streams;
  streams.reserve(units.size());
  int64_t first = 0;
  for (const DropoutUnit& unit : units) {
    VLMTRAIN_CHECK(unit.share * rows % shares == 0, "{} rows for dropout in {} of {} parts", rows, unit.share, shares);
    streams.push_back({.key = stream_seed(unit.seed, "dropout", {layer}), .first_row = first});
    first += unit.share * rows / shares;
  }
  return streams;
}

/// By ATen's generators, a launch a stream: bool [readers, rows, columns].
at::Tensor draw_masks(const at::Tensor& x, int64_t readers, const kernels::DropoutDraw& draw) {
  const int64_t rows = x.size(0);
  at::Tensor masks = at::empty({readers, rows, x.size(1)}, x.options().dtype(at::kBool));
  // Up to there one launch draws a stream's elements by their order; beyond, ATen cuts what is strided by its place.
  const bool in_place =
      draw.streams.size() == 1 || readers == 1 || masks.numel() <= std::numeric_limits<int32_t>::max();
  at::Generator generator = new_generator(x.device());
  for (size_t i = 0; i < draw.streams.size(); ++i) {
    const auto [key, first] = draw.streams[i];
    const int64_t end = i + 1 < draw.streams.size() ? draw.streams[i + 1].first_row : rows;
    generator.set_current_seed(key);
    at::Tensor own = masks.narrow(1, first, end - first);
    if (in_place) {
      own.bernoulli_(1 - draw.probability, generator);
    } else {
      own.copy_(at::empty(own.sizes(), own.options()).bernoulli_(1 - draw.probability, generator));
    }
  }
  return masks;
}

/// Keeps a mask, or how to draw it again.
struct Drop : torch::autograd::Function<Drop> {
  using HeldDropout = Held<ReadersDropout>;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<HeldDropout>& held) {
    at::Tensor result = dropped(held->value, x);
    context->save_for_backward({held->value.take_masks()});
    context->saved_data["dropout"] = c10::IValue::make_capsule(held);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held = c10::static_intrusive_pointer_cast<HeldDropout>(context->saved_data["dropout"].toCapsule());
    ReadersDropout dropout = held->value;
    dropout.give_masks(context->get_saved_variables()[0]);
    return {dropped(dropout, gradients[0]), {}};
  }

 private:
  static at::Tensor dropped(const ReadersDropout& dropout, const at::Tensor& x) {
    at::Tensor result;
    dropout.drop(x, [&](int64_t /*reader*/, const at::Tensor& dropped) { result = dropped; });
    return result;
  }
};

}  // namespace

DropoutScope::DropoutScope(std::vector<DropoutUnit> units)
    : DropoutScope(std::make_shared<const std::vector<DropoutUnit>>(std::move(units))) {}

DropoutScope::DropoutScope(DropoutUnits units) : outer_(std::exchange(units_of_thread, std::move(units))) {}

DropoutScope::~DropoutScope() {
  units_of_thread = std::move(outer_);
}

const DropoutUnits& DropoutScope::current() {
  return units_of_thread;
}

ReadersDropout::ReadersDropout(const at::Tensor& x, int64_t readers, double probability, uint64_t layer)
    : readers_(readers), probability_(probability), streams_(streams_of(x.size(0), layer)) {
  if (!kernels::has(kernels::Kernel::kDropout, x)) masks_ = draw_masks(x, readers, draw());
}

void ReadersDropout::drop(const at::Tensor& x,
                          const std::function<void(int64_t reader, const at::Tensor& dropped)>& use) const {
  const at::NoGradGuard no_gradients;
  if (draws_again()) {
    // Of one reader no view: autograd may get it as a result.
    const at::Tensor all =
        readers_ == 1 ? at::empty(x.sizes(), x.options()) : at::empty({readers_, x.size(0), x.size(1)}, x.options());
    kernels::dropout(all, x.contiguous(), draw());
    for (int64_t i = 0; i < readers_; ++i) use(i, readers_ == 1 ? all : all[i]);
    return;
  }
  for (int64_t i = 0; i < readers_; ++i) {
    use(i, at::native_dropout_backward(x, masks_[i], 1 / (1 - probability_)));  // one kernel: x · mask · scale
  }
}

void ReadersDropout::add_gradients(
    const at::Tensor& sum,
    const std::function<at::Tensor(int64_t reader, const at::Tensor& place)>& gradient_of) const {
  const at::NoGradGuard no_gradients;
  if (draws_again()) {
    const at::Tensor gradients = at::empty({readers_, sum.size(0), sum.size(1)}, sum.options());
    for (int64_t i = 0; i < readers_; ++i) gradient_of(i, gradients[i]);
    kernels::dropout_backward(sum, gradients, draw());
    return;
  }
  for (int64_t i = 0; i < readers_; ++i) sum.addcmul_(gradient_of(i, {}), masks_[i], 1 / (1 - probability_));
}

at::Tensor unit_dropout(const at::Tensor& x, double probability, uint64_t layer) {
  return Drop::apply(x, c10::make_intrusive<Held<ReadersDropout>>(ReadersDropout(x, 1, probability, layer)));
}

}  // namespace vlmtrain::nn
