#include "vlmtrain/kernels/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  at::Tensor value = at::empty_like(x);
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::activate", {x}, {value})(launchers().activate,
                                                   ActivationArgs{.element = get_element_type(x),
                                                                  .function = function,
                                                                  .count = x.numel(),
                                                                  .gradient = nullptr,
                                                                  .x = x.const_data_ptr(),
                                                                  .result = value.mutable_data_ptr()});
  return value;
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  at::Tensor dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  KernelLaunch("vlmtrain::activation_backward", {gradient, x}, {dx})(
      launchers().activate, ActivationArgs{.element = get_element_type(x),
                                           .function = function,
                                           .count = x.numel(),
                                           .gradient = gradient.const_data_ptr(),
                                           .x = x.const_data_ptr(),
                                           .result = dx.mutable_data_ptr()});
  return dx;
}

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation) {
  const int64_t features = x.size(-1) / 2;
  at::Tensor value = at::empty({x.size(0), features}, x.options());
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::gated_activation", {x}, {value})(
      launchers().gated_activation_forward, GatedActivationForwardArgs{.element = get_element_type(x),
                                                                       .activation = activation,
                                                                       .rows = x.size(0),
                                                                       .features = features,
                                                                       .x = x.const_data_ptr(),
                                                                       .value = value.mutable_data_ptr()});
  return value;
}

at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  at::Tensor dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  KernelLaunch("vlmtrain::gated_activation_backward", {gradient, x}, {dx})(
      launchers().gated_activation_backward, GatedActivationBackwardArgs{.element = get_element_type(x),
                                                                         .activation = activation,
                                                                         .rows = x.size(0),
                                                                         .features = x.size(-1) / 2,
                                                                         .gradient = gradient.const_data_ptr(),
                                                                         .x = x.const_data_ptr(),
                                                                         .dx = dx.mutable_data_ptr()});
  return dx;
}

namespace {

constexpr double kQuickGeluScale = 1.702;  // OpenAI's CLIP

}  // namespace

namespace reference {

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation) {
  const auto halves = x.to(at::kDouble).chunk(2, -1);
  const at::Tensor activated_gate =
      activation == GateActivation::kSilu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
  return (activated_gate * halves[1]).to(x.scalar_type());
}

at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  const auto halves = x.to(at::kDouble).chunk(2, -1);
  const at::Tensor activated_gate_gradient = gradient.to(at::kDouble) * halves[1];
  const bool is_silu = activation == GateActivation::kSilu;
  const at::Tensor activated_gate = is_silu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
  const at::Tensor gate_gradient = is_silu ? at::silu_backward(activated_gate_gradient, halves[0])
                                           : at::gelu_backward(activated_gate_gradient, halves[0], "tanh");
  return at::cat({gate_gradient, gradient.to(at::kDouble) * activated_gate}, -1).to(x.scalar_type());
}

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  const at::Tensor x_fp64 = x.to(at::kDouble);
  const auto value = [&] {
    switch (function) {
      case ActivationFunction::kGelu:
        return at::gelu(x_fp64);
      case ActivationFunction::kGeluTanh:
        return at::gelu(x_fp64, "tanh");
      case ActivationFunction::kQuickGelu:
        return x_fp64 * (x_fp64 * kQuickGeluScale).sigmoid();
      case ActivationFunction::kRelu:
        return x_fp64.clamp_min(0);
    }
    throw InternalError("unknown activation");
  };
  return value().to(x.scalar_type());
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  const at::Tensor x_fp64 = x.to(at::kDouble), dy = gradient.to(at::kDouble);
  const auto dx = [&] {
    switch (function) {
      case ActivationFunction::kGelu:
        return at::gelu_backward(dy, x_fp64);
      case ActivationFunction::kGeluTanh:
        return at::gelu_backward(dy, x_fp64, "tanh");
      case ActivationFunction::kQuickGelu:
        return at::silu_backward(dy, x_fp64 * kQuickGeluScale);
      case ActivationFunction::kRelu:
        return dy * x_fp64.gt(0);
    }
    throw InternalError("unknown activation");
  };
  return dx().to(x.scalar_type());
}

}  // namespace reference

std::vector<ComparedTensors> test_gated_activation(RandomInputs& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      const at::Tensor x = inputs.make_tensor({sizes.rows, 2 * columns}),
                       gradient = inputs.make_tensor({sizes.rows, columns});
      compared_tensors.push_back({gated_activation(x, activation), reference::gated_activation(x, activation)});
      compared_tensors.push_back({gated_activation_backward(gradient, x, activation),
                                  reference::gated_activation_backward(gradient, x, activation)});
    }
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_activation(RandomInputs& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    for (const auto function : {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                ActivationFunction::kQuickGelu, ActivationFunction::kRelu}) {
      const at::Tensor x = inputs.make_tensor({sizes.rows, columns}),
                       gradient = inputs.make_tensor({sizes.rows, columns});
      compared_tensors.push_back({activate(x, function), reference::activate(x, function)});
      compared_tensors.push_back(
          {activation_backward(gradient, x, function), reference::activation_backward(gradient, x, function)});
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
