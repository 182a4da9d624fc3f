#include "vlmtrain/nn/linear.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// at::linear with its products through matmul_transposed. `bias` may be undefined.
struct CpuLinear : torch::autograd::Function<CpuLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    // Only a trained weight needs x again.
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    context->saved_data["has_bias"] = bias.has_value();
    at::Tensor y = matmul_transposed(x, weight);
    if (bias) y.add_(*bias);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor gradient = gradients[0].contiguous();
    variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = matmul_transposed(gradient, weight.t());
    if (context->needs_input_grad(1)) result[1] = matmul_transposed(gradient.t(), x.t());
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = gradient.sum(0);
    return result;
  }
};

struct HeldWeight : torch::CustomClassHolder {
  explicit HeldWeight(std::shared_ptr<const QuantizedWeight> held) : weight(std::move(held)) {}
  std::shared_ptr<const QuantizedWeight> weight;
};

/// Keeps neither x, which only a trained weight needs again, nor the dequantised weight.
struct QuantizedLinear : torch::autograd::Function<QuantizedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<HeldWeight>& weight,
                            const std::optional<at::Tensor>& bias) {
    context->saved_data["weight"] = c10::IValue::make_capsule(weight);
    context->saved_data["has_bias"] = bias.has_value();
    return linear(x, weight->weight->dequantize(), bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list result(3);
    if (context->needs_input_grad(0)) {
      const auto held = c10::static_intrusive_pointer_cast<HeldWeight>(context->saved_data["weight"].toCapsule());
      result[0] = matmul_transposed(gradients[0].contiguous(), held->weight->dequantize().t());
    }
    // Of the tensors among the inputs the bias is the second.
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) result[2] = gradients[0].sum(0);
    return result;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.is_cuda()) return at::linear(x, weight, bias);
  return CpuLinear::apply(x, weight, bias.defined() ? std::optional{bias} : std::nullopt);
}

at::Tensor linear(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) {
  if (!weight.is_quantized()) return linear(x, weight.values(), bias);
  return QuantizedLinear::apply(x, c10::make_intrusive<HeldWeight>(weight.quantized()),
                                bias.defined() ? std::optional{bias} : std::nullopt);
}

Linear::Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias, double initial_gain)
    : weight_(scope.linear_weight({out_features, in_features}, InitialValues::for_fan_in(in_features, initial_gain))) {
  if (bias) bias_ = scope.parameter("bias", {out_features}, InitialValues::zeros());
  if (const LoraSettings* lora = scope.linear_here()) adapter_.emplace(scope, *lora, in_features, out_features);
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return adapter_ ? (*adapter_)(x, weight_, bias_) : linear(x, weight_, bias_);
}

}  // namespace vlmtrain::nn
