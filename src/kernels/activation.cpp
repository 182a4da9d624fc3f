#include "vlmtrain/kernels/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/rows.h"

namespace vlmtrain::kernels {

namespace {

/// Returns the arguments for tensors of one shape. Contiguous tensors are one long row. `gradient`:
/// undefined in the forward pass.
ActivationArgs make_activation_args(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& result,
                                    ActivationFunction function) {
  const bool is_one_row =
      x.is_contiguous() && result.is_contiguous() && (!gradient.defined() || gradient.is_contiguous());
  const auto get_stride = [&](const at::Tensor& tensor) { return is_one_row ? 0 : get_row_stride(tensor); };
  return {.element = get_element_type(x),
          .function = function,
          .rows = is_one_row ? 1 : x.size(0),
          .features = is_one_row ? x.numel() : x.size(1),
          .gradient_stride = get_stride(gradient),
          .x_stride = get_stride(x),
          .result_stride = get_stride(result),
          .gradient = gradient.defined() ? gradient.const_data_ptr() : nullptr,
          .x = x.const_data_ptr(),
          .result = result.mutable_data_ptr()};
}

}  // namespace

bool can_run_activation(const at::Tensor& x) {
  return is_available(Kernel::kActivation, x) && has_dense_rows(x);
}

at::Tensor activate(const at::Tensor& x, ActivationFunction function, int64_t border_columns) {
  at::Tensor value = allocate_bordered_rows(x.sizes(), border_columns, x.options());
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::activate", {x}, {value})(launchers().activate, make_activation_args({}, x, value, function));
  return value;
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  at::Tensor dx = allocate_rows_like(x);
  if (dx.numel() == 0) return dx;
  const at::Tensor dy = make_dense_rows(gradient);
  KernelLaunch("vlmtrain::activation_backward", {dy, x}, {dx})(launchers().activate,
                                                               make_activation_args(dy, x, dx, function));
  return dx;
}

bool can_run_gated_activation(const at::Tensor& x) {
  return is_available(Kernel::kGatedActivation, x) && has_dense_rows(x);
}

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation, int64_t border_columns) {
  const int64_t features = x.size(-1) / 2;
  at::Tensor value = allocate_bordered_rows({x.size(0), features}, border_columns, x.options());
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::gated_activation", {x}, {value})(
      launchers().gated_activation_forward, GatedActivationForwardArgs{.element = get_element_type(x),
                                                                       .activation = activation,
                                                                       .rows = x.size(0),
                                                                       .features = features,
                                                                       .x_stride = get_row_stride(x),
                                                                       .value_stride = get_row_stride(value),
                                                                       .x = x.const_data_ptr(),
                                                                       .value = value.mutable_data_ptr()});
  return value;
}

at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  at::Tensor dx = allocate_rows_like(x);
  if (dx.numel() == 0) return dx;
  const at::Tensor dy = make_dense_rows(gradient);
  KernelLaunch("vlmtrain::gated_activation_backward", {dy, x}, {dx})(
      launchers().gated_activation_backward, GatedActivationBackwardArgs{.element = get_element_type(x),
                                                                         .activation = activation,
                                                                         .rows = x.size(0),
                                                                         .features = x.size(-1) / 2,
                                                                         .gradient_stride = get_row_stride(dy),
                                                                         .x_stride = get_row_stride(x),
                                                                         .dx_stride = get_row_stride(dx),
                                                                         .gradient = dy.const_data_ptr(),
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
      for (const at::Tensor& input : {x, copy_to_bordered_rows(x)}) {
        compared_tensors.push_back(
            {gated_activation(input, activation, kTestBorderColumns), reference::gated_activation(x, activation)});
        compared_tensors.push_back({gated_activation_backward(gradient, input, activation),
                                    reference::gated_activation_backward(gradient, x, activation)});
      }
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
      for (const at::Tensor& input : {x, copy_to_bordered_rows(x)}) {
        compared_tensors.push_back({activate(input, function, input.is_contiguous() ? 0 : kTestBorderColumns),
                                    reference::activate(x, function)});
        compared_tensors.push_back(
            {activation_backward(gradient, input, function), reference::activation_backward(gradient, x, function)});
      }
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
