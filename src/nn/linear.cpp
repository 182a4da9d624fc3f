#include "vlmtrain/nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "nn/held.h"
#include "nn/linear_group.h"
#include "nn/stack.h"
#include "vlmtrain/nn/lora_adapter.h"
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

using HeldWeight = Held<std::shared_ptr<const QuantizedWeight>>;

/// Keeps neither x, which only a trained weight needs again, nor the dequantised weight.
struct QuantizedLinear : torch::autograd::Function<QuantizedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<HeldWeight>& weight,
                            const std::optional<at::Tensor>& bias) {
    context->saved_data["weight"] = c10::IValue::make_capsule(weight);
    context->saved_data["has_bias"] = bias.has_value();
    return linear(x, weight->value->dequantize(), bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list result(3);
    if (context->needs_input_grad(0)) {
      const auto held = c10::static_intrusive_pointer_cast<HeldWeight>(context->saved_data["weight"].toCapsule());
      result[0] = matmul_transposed(gradients[0].contiguous(), held->value->dequantize().t());
    }
    // Of the tensors among the inputs the bias is the second.
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) result[2] = gradients[0].sum(0);
    return result;
  }
};

std::vector<ParameterScope> places_of(const ParameterScope& scope, const std::vector<const char*>& names) {
  std::vector<ParameterScope> places;
  places.reserve(names.size());
  for (const char* name : names) places.push_back(scope / name);
  return places;
}

/// End to end where all weights are quantised or none is. Quantised ones with DoRA are not: each is dequantised by
/// itself, with fewer launches where its own tensors lie together.
std::vector<WeightPlace> places_of_weights(const std::vector<ParameterScope>& places, int64_t in_features,
                                           const std::vector<int64_t>& out_features, bool any_dora) {
  std::vector<WeightPlace> found(places.size());
  const ParameterStore& store = places.front().store();
  if (std::ranges::all_of(places, &ParameterScope::quantizes_linear_weight)) {
    if (any_dora) return found;
    const auto quantized = store.quantized_places(out_features, in_features);
    for (size_t i = 0; i < found.size(); ++i) found[i].quantized = quantized[i];
  } else if (std::ranges::none_of(places, &ParameterScope::quantizes_linear_weight)) {
    const auto tensors = end_to_end(out_features, {in_features}, store.options());
    for (size_t i = 0; i < found.size(); ++i) found[i].tensor = tensors[i];
  }
  return found;
}

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

Linears::Linears(const std::vector<ParameterScope>& places, int64_t in_features,
                 const std::vector<int64_t>& out_features, bool bias, double initial_gain) {
  const at::TensorOptions& options = places.front().store().options();
  std::vector<const LoraSettings*> settings;
  settings.reserve(places.size());
  for (const ParameterScope& place : places) settings.push_back(place.linear_here());
  std::vector<at::Tensor> biases(places.size());
  const bool any_dora =
      std::ranges::any_of(settings, [](const LoraSettings* own) { return own != nullptr && own->use_dora; });
  const auto weights = places_of_weights(places, in_features, out_features, any_dora);
  if (bias) biases = end_to_end(out_features, {}, options);
  std::vector<int64_t> ranks;
  ranks.reserve(settings.size());
  for (const LoraSettings* own : settings) ranks.push_back(own != nullptr ? own->rank : 0);
  const auto places_of_a = end_to_end(ranks, {in_features}, options);

  auto group = std::make_shared<LinearGroup>();
  int64_t first_column = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const ParameterScope& place = places[i];
    const int64_t columns = out_features[i];
    LinearGroup::Part part{
        .weight = place.linear_weight({columns, in_features}, InitialValues::for_fan_in(in_features, initial_gain),
                                      weights[i]),
        .bias = {},
        .adapter = {},
        .first_column = first_column,
        .columns = columns};
    if (bias) part.bias = place.parameter("bias", {columns}, InitialValues::zeros(), biases[i]);
    if (settings[i] != nullptr) part.adapter.emplace(place, *settings[i], places_of_a[i], in_features, columns);
    group->parts.push_back(std::move(part));
    first_column += columns;
  }
  group_ = std::move(group);
}

Linears::Linears(const ParameterScope& scope, const std::vector<const char*>& names, int64_t in_features,
                 const std::vector<int64_t>& out_features, bool bias)
    : Linears(places_of(scope, names), in_features, out_features, bias) {}

at::Tensor Linears::operator()(const Operand& x, const at::Tensor& residual) const {
  if (!group_->has_dora()) return apply(group_, x, residual);
  const at::Tensor value = x.value();
  std::vector<at::Tensor> columns;
  for (const auto& part : group_->parts) {
    columns.push_back(part.adapter ? part.adapter->with_dora(value, part.weight, part.bias)
                                   : linear(value, part.weight, part.bias));
  }
  const at::Tensor y = columns.size() == 1 ? columns.front() : at::cat(columns, 1);
  return residual.defined() ? y + residual : y;
}

Branch Linears::branch(const Operand& x) const {
  const at::Tensor& stream = x.inputs().front();
  // What needs no gradient, or a norm of which none is made by the group, goes on as it is.
  if (!stream.requires_grad() || !x.prologue() || group_->has_dora()) return {(*this)(x), stream};
  return apply_beside(group_, x);
}

}  // namespace vlmtrain::nn
