#include "vlmtrain/nn/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/threshold_backward.h>

#include <memory>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/gate.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {

namespace {

constexpr double kQuickGeluSteepness = 1.702;

at::Tensor by_aten(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kQuickGelu:
      return at::silu(x * kQuickGeluSteepness).mul_(1 / kQuickGeluSteepness);
    case Activation::kRelu:
      return at::threshold(x, 0, 0);  // at::relu has no kernel for a plan of the host (meta)
  }
  throw InternalError("unknown activation");
}

at::Tensor backward_by_aten(Activation activation, const at::Tensor& x, const at::Tensor& gradient) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu_backward(gradient, x);
    case Activation::kGeluTanh:
      return at::gelu_backward(gradient, x, "tanh");
    case Activation::kQuickGelu:
      return at::silu_backward(gradient, x * kQuickGeluSteepness);
    case Activation::kRelu:
      return at::threshold_backward(gradient, x, 0);
  }
  throw InternalError("unknown activation");
}

kernels::ActivationFunction function_of(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return kernels::ActivationFunction::kGelu;
    case Activation::kGeluTanh:
      return kernels::ActivationFunction::kGeluTanh;
    case Activation::kQuickGelu:
      return kernels::ActivationFunction::kQuickGelu;
    case Activation::kRelu:
      return kernels::ActivationFunction::kRelu;
  }
  throw InternalError("unknown activation");
}

class ActivationPrologue : public Prologue {
 public:
  explicit ActivationPrologue(Activation activation) : activation_(activation) {}

  Made make(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor& x = inputs[0];
    return {.value = is_own(x) ? kernels::activate(x, function_of(activation_)) : by_aten(activation_, x)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& /*made*/,
                                   const at::Tensor& gradient, const std::vector<bool>& wanted) const override {
    if (!wanted[0]) return {at::Tensor()};
    const at::Tensor& x = inputs[0];
    return {is_own(x) ? kernels::activation_backward(gradient, x, function_of(activation_))
                      : backward_by_aten(activation_, x, gradient)};
  }

 private:
  static bool is_own(const at::Tensor& x) { return kernels::has(kernels::Kernel::kActivation, x) && x.is_contiguous(); }

  Activation activation_;
};

struct Silu {
  static constexpr auto kKernel = kernels::GateActivation::kSilu;
  static at::Tensor of(const at::Tensor& gate) { return at::silu(gate); }
  static void into(at::Tensor& out, const at::Tensor& gate) { at::silu_out(out, gate); }
  static void backward_into(at::Tensor& out, const at::Tensor& gradient, const at::Tensor& gate) {
    at::silu_backward_out(out, gradient, gate);
  }
};

struct GeluTanh {
  static constexpr auto kKernel = kernels::GateActivation::kGeluTanh;
  static at::Tensor of(const at::Tensor& gate) { return at::gelu(gate, "tanh"); }
  static void into(at::Tensor& out, const at::Tensor& gate) { at::gelu_out(out, gate, "tanh"); }
  static void backward_into(at::Tensor& out, const at::Tensor& gradient, const at::Tensor& gate) {
    at::gelu_backward_out(out, gradient, gate, "tanh");
  }
};

template <class Gate>
class GatePrologue : public Prologue {
 public:
  /// scratch, of ATen's way: what backward() returns, with the gate's activation in its first half.
  Made make(const std::vector<at::Tensor>& inputs, bool for_backward) const override {
    const at::NoGradGuard no_gradients;
    if (is_own(inputs[0])) return {.value = kernels::gate(inputs[0], Gate::kKernel)};
    const auto halves = inputs[0].chunk(2, -1);
    if (!for_backward) return {.value = Gate::of(halves[0]).mul_(halves[1])};
    const at::Tensor scratch = opened(inputs[0]);
    return {.value = scratch.chunk(2, -1)[0] * halves[1], .scratch = scratch};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made, const at::Tensor& gradient,
                                   const std::vector<bool>& wanted) const override {
    if (!wanted[0]) return {at::Tensor()};
    if (is_own(inputs[0])) {
      return {kernels::gate_backward(gradient, inputs[0], Gate::kKernel)};
    }
    const auto halves = inputs[0].chunk(2, -1);
    at::Tensor result = made.scratch.defined() ? made.scratch : opened(inputs[0]);
    auto of_halves = result.chunk(2, -1);
    at::mul_out(of_halves[1], gradient, of_halves[0]);
    at::mul_out(of_halves[0], gradient, halves[1]);
    Gate::backward_into(of_halves[0], of_halves[0], halves[0]);
    return {result};
  }

 private:
  static bool is_own(const at::Tensor& x) { return kernels::has(kernels::Kernel::kGate, x) && x.is_contiguous(); }

  /// Of x's size, with the activation in place of the gate.
  static at::Tensor opened(const at::Tensor& x) {
    at::Tensor result = at::empty_like(x);
    at::Tensor of_gate = result.chunk(2, -1)[0];
    Gate::into(of_gate, x.chunk(2, -1)[0]);
    return result;
  }
};

}  // namespace

Operand activated(Activation activation, const at::Tensor& x) {
  return {std::make_shared<ActivationPrologue>(activation), {x}};
}

Operand gated(const at::Tensor& x) {
  return {std::make_shared<GatePrologue<Silu>>(), {x}};
}

Operand gelu_gated(const at::Tensor& x) {
  return {std::make_shared<GatePrologue<GeluTanh>>(), {x}};
}

}  // namespace vlmtrain::nn
