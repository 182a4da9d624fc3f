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

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

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

/// Keeps the mask alone.
struct Drop : torch::autograd::Function<Drop> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& mask, double probability) {
    context->save_for_backward({mask});
    context->saved_data["probability"] = probability;
    return apply_dropout_mask(x, mask, probability);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor mask = context->get_saved_variables()[0];
    return {apply_dropout_mask(gradients[0], mask, context->saved_data["probability"].toDouble()), {}, {}};
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

at::Tensor draw_dropout_masks(const at::Tensor& x, int64_t count, double probability, uint64_t layer) {
  VLMTRAIN_CHECK(units_of_thread && !units_of_thread->empty(), "dropout outside a DropoutScope");
  const auto& units = *units_of_thread;
  const int64_t rows = x.size(0);
  const int64_t shares = std::accumulate(units.begin(), units.end(), int64_t{0},
                                         [](int64_t sum, const DropoutUnit& unit) { return sum + unit.share; });
  at::Tensor masks = at::empty({count, rows, x.size(1)}, x.options().dtype(at::kBool));
  // Up to there one launch draws a unit's elements by their order; beyond, ATen cuts what is strided by its place.
  const bool in_place = units.size() == 1 || count == 1 || masks.numel() <= std::numeric_limits<int32_t>::max();
  at::Generator generator = new_generator(x.device());
  int64_t first = 0;
  for (const DropoutUnit& unit : units) {
    VLMTRAIN_CHECK(unit.share * rows % shares == 0, "{} rows for dropout in {} of {} parts", rows, unit.share, shares);
    const int64_t own_rows = unit.share * rows / shares;
    generator.set_current_seed(stream_seed(unit.seed, "dropout", {layer}));
    at::Tensor own = masks.narrow(1, first, own_rows);
    if (in_place) {
      own.bernoulli_(1 - probability, generator);
    } else {
      own.copy_(at::empty(own.sizes(), own.options()).bernoulli_(1 - probability, generator));
    }
    first += own_rows;
  }
  return masks;
}

at::Tensor apply_dropout_mask(const at::Tensor& x, const at::Tensor& mask, double probability) {
  const at::NoGradGuard no_gradients;
  return at::native_dropout_backward(x, mask, 1 / (1 - probability));  // one kernel: x · mask · scale
}

void add_with_dropout_mask(const at::Tensor& y, const at::Tensor& x, const at::Tensor& mask, double probability) {
  const at::NoGradGuard no_gradients;
  y.addcmul_(x, mask, 1 / (1 - probability));
}

at::Tensor unit_dropout(const at::Tensor& x, double probability, uint64_t layer) {
  return Drop::apply(x, draw_dropout_masks(x, 1, probability, layer).squeeze(0), probability);
}

}  // namespace vlmtrain::nn
