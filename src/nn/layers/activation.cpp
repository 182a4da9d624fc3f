#include "vlmtrain/nn/layers/activation.h"

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
#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::nn {

namespace {

/// From OpenAI's CLIP.
constexpr double kQuickGeluScale = 1.702;

at::Tensor activate_aten(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kQuickGelu:
      return at::silu(x * kQuickGeluScale).mul_(1 / kQuickGeluScale);  // x σ(c x) = silu(c x) / c
    case Activation::kRelu:
      return at::threshold(x, 0, 0);  // at::relu has no meta kernel, which dry runs on the host need
  }
  throw InternalError("unknown activation");
}

at::Tensor activation_backward_aten(Activation activation, const at::Tensor& x, const at::Tensor& gradient) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu_backward(gradient, x);
    case Activation::kGeluTanh:
      return at::gelu_backward(gradient, x, "tanh");
    case Activation::kQuickGelu:
      return at::silu_backward(gradient, x * kQuickGeluScale);
    case Activation::kRelu:
      return at::threshold_backward(gradient, x, 0);
  }
  throw InternalError("unknown activation");
}

kernels::ActivationFunction to_kernel_activation(Activation activation) {
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

class ActivationPrologue : public FusedPrologue {
 public:
  explicit ActivationPrologue(Activation activation) : activation_(activation) {}

  Output forward(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor& x = inputs[0];
    return {.value = kernels::can_run_activation(x) ? kernels::activate(x, to_kernel_activation(activation_))
                                                    : activate_aten(activation_, x)};
  }

  Output forward_with_border(const std::vector<at::Tensor>& inputs, int64_t border_columns) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor& x = inputs[0];
    if (!kernels::can_run_activation(x)) return FusedPrologue::forward_with_border(inputs, border_columns);
    return {.value = kernels::activate(x, to_kernel_activation(activation_), border_columns)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& /*made*/,
                                   const at::Tensor& gradient, const std::vector<bool>& needs_grad) const override {
    if (!needs_grad[0]) return {at::Tensor()};
    const at::Tensor& x = inputs[0];
    return {kernels::can_run_activation(x)
                ? kernels::activation_backward(gradient, x, to_kernel_activation(activation_))
                : activation_backward_aten(activation_, x, gradient)};
  }

 private:
  Activation activation_;
};

struct Silu {
  static constexpr auto kKernelActivation = kernels::GateActivation::kSilu;
  static at::Tensor forward(const at::Tensor& gate) { return at::silu(gate); }
  static void forward_out(at::Tensor& out, const at::Tensor& gate) { at::silu_out(out, gate); }
  static void backward_out(at::Tensor& out, const at::Tensor& gradient, const at::Tensor& gate) {
    at::silu_backward_out(out, gradient, gate);
  }
};

struct GeluTanh {
  static constexpr auto kKernelActivation = kernels::GateActivation::kGeluTanh;
  static at::Tensor forward(const at::Tensor& gate) { return at::gelu(gate, "tanh"); }
  static void forward_out(at::Tensor& out, const at::Tensor& gate) { at::gelu_out(out, gate, "tanh"); }
  static void backward_out(at::Tensor& out, const at::Tensor& gradient, const at::Tensor& gate) {
    at::gelu_backward_out(out, gradient, gate, "tanh");
  }
};

/// A gated activation; GateFunction is Silu or GeluTanh.
template <class GateFunction>
class GatedPrologue : public FusedPrologue {
 public:
  /// With ATen, Output::scratch is the buffer that backward() returns; its first half holds the
  /// activation of the gate.
  Output forward(const std::vector<at::Tensor>& inputs, bool for_backward) const override {
    const at::NoGradGuard no_gradients;
    if (kernels::can_run_gated_activation(inputs[0]))
      return {.value = kernels::gated_activation(inputs[0], GateFunction::kKernelActivation)};
    const auto halves = inputs[0].chunk(2, -1);
    if (!for_backward) return {.value = GateFunction::forward(halves[0]).mul_(halves[1])};
    const at::Tensor scratch = activate_gate_columns(inputs[0]);
    return {.value = scratch.chunk(2, -1)[0] * halves[1], .scratch = scratch};
  }

  Output forward_with_border(const std::vector<at::Tensor>& inputs, int64_t border_columns) const override {
    const at::NoGradGuard no_gradients;
    if (!kernels::can_run_gated_activation(inputs[0]))
      return FusedPrologue::forward_with_border(inputs, border_columns);
    return {.value = kernels::gated_activation(inputs[0], GateFunction::kKernelActivation, border_columns)};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& output,
                                   const at::Tensor& gradient, const std::vector<bool>& needs_grad) const override {
    if (!needs_grad[0]) return {at::Tensor()};
    if (kernels::can_run_gated_activation(inputs[0])) {
      return {kernels::gated_activation_backward(gradient, inputs[0], GateFunction::kKernelActivation)};
    }
    const auto halves = inputs[0].chunk(2, -1);
    at::Tensor result = output.scratch.defined() ? output.scratch : activate_gate_columns(inputs[0]);
    auto gate_up_gradients = result.chunk(2, -1);
    at::mul_out(gate_up_gradients[1], gradient, gate_up_gradients[0]);
    at::mul_out(gate_up_gradients[0], gradient, halves[1]);
    GateFunction::backward_out(gate_up_gradients[0], gate_up_gradients[0], halves[0]);
    return {result};
  }

 private:
  /// Returns a tensor of x's size. Its gate half holds the activation; its up half is
  /// uninitialized.
  static at::Tensor activate_gate_columns(const at::Tensor& x) {
    at::Tensor result = at::empty_like(x);
    at::Tensor activated_gate = result.chunk(2, -1)[0];
    GateFunction::forward_out(activated_gate, x.chunk(2, -1)[0]);
    return result;
  }
};

/// gelu_pytorch_tanh(gate) · up for inputs gate and up.
class GeluTanhProductPrologue final : public FusedPrologue {
 public:
  Output forward(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    return {.value = GeluTanh::forward(inputs[0]).mul_(inputs[1])};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& /*output*/,
                                   const at::Tensor& gradient, const std::vector<bool>& needs_grad) const override {
    const at::NoGradGuard no_gradients;
    std::vector<at::Tensor> gradients(inputs.size());
    if (needs_grad[0]) gradients[0] = at::gelu_backward(gradient * inputs[1], inputs[0], "tanh");
    if (needs_grad[1]) gradients[1] = GeluTanh::forward(inputs[0]).mul_(gradient);
    return gradients;
  }
};

}  // namespace

LinearInput apply_activation(Activation activation, const at::Tensor& x) {
  return {std::make_shared<ActivationPrologue>(activation), {x}};
}

LinearInput swiglu(const at::Tensor& x) {
  return {std::make_shared<GatedPrologue<Silu>>(), {x}};
}

LinearInput geglu(const at::Tensor& x) {
  return {std::make_shared<GatedPrologue<GeluTanh>>(), {x}};
}

LinearInput geglu(const at::Tensor& gate, const at::Tensor& up) {
  return {std::make_shared<GeluTanhProductPrologue>(), {gate, up}};
}

}  // namespace vlmtrain::nn
