#include "vlmtrain/nn/layers/linear.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "nn/adjacent_tensors.h"
#include "nn/layers/bordered_weights.h"
#include "nn/layers/linear_group.h"
#include "nn/value_capsule.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/nn/layers/matmul.h"
#include "vlmtrain/nn/layers/recompute.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using PrologueCapsule = ValueCapsule<std::shared_ptr<const FusedPrologue>>;

/// Computes the value of a prologue and saves its inputs only. `tensors`: the prologue's inputs,
/// then the residual if `has_residual`.
struct PrologueFunction : torch::autograd::Function<PrologueFunction> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<PrologueCapsule>& prologue,
                            at::TensorList tensors, bool has_residual) {
    variable_list inputs = tensors.vec();
    at::Tensor residual;
    if (has_residual) {
      residual = std::move(inputs.back());
      inputs.pop_back();
    }
    FusedPrologue::Output output = has_residual ? prologue->value->forward_add_residual(inputs, residual)
                                                : prologue->value->forward(inputs, /*for_backward=*/false);
    context->saved_data["prologue"] = c10::IValue::make_capsule(prologue);
    context->saved_data["inputs"] = std::ssize(inputs);
    context->saved_data["has_residual"] = has_residual;
    inputs.insert(inputs.end(), output.statistics.begin(), output.statistics.end());
    context->save_for_backward(std::move(inputs));
    return output.value;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto prologue =
        c10::static_intrusive_pointer_cast<PrologueCapsule>(context->saved_data["prologue"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    const auto count = context->saved_data["inputs"].toInt();
    const FusedPrologue::Output output{.statistics = {inputs.begin() + count, inputs.end()}};
    inputs.resize(static_cast<size_t>(count));
    std::vector<bool> needs_grad;
    for (size_t i = 0; i < inputs.size(); ++i) needs_grad.push_back(context->needs_input_grad(i));
    variable_list result{at::Tensor()};  // for the prologue
    for (auto& gradient : prologue->value->backward(inputs, output, gradients[0].contiguous(), needs_grad)) {
      result.push_back(std::move(gradient));
    }
    if (context->saved_data["has_residual"].toBool()) result.push_back(gradients[0]);
    result.emplace_back();  // for has_residual
    return result;
  }
};

/// Computes at::linear() on the CPU with matmul_transposed().
struct CpuLinearFunction : torch::autograd::Function<CpuLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    // Only the gradient of the weight needs x.
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    context->saved_data["has_bias"] = bias.has_value();
    at::Tensor y = matmul_transposed(x, weight);
    if (bias) y.add_(*bias);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved_tensors = context->get_saved_variables();
    const at::Tensor& x = saved_tensors[0];
    const at::Tensor& weight = saved_tensors[1];
    const at::Tensor gradient = gradients[0].contiguous();
    variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = matmul_transposed(gradient, weight.t());
    if (context->needs_input_grad(1)) result[1] = matmul_transposed(gradient.t(), x.t());
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = gradient.sum(0);
    return result;
  }
};

using WeightCapsule = ValueCapsule<std::shared_ptr<const QuantizedWeight>>;

/// A Linear with a frozen quantized weight. Saves neither x, which only the gradient of a trained
/// weight would need, nor the dequantized weight.
struct QuantizedLinearFunction : torch::autograd::Function<QuantizedLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<WeightCapsule>& weight, const std::optional<at::Tensor>& bias) {
    context->saved_data["weight"] = c10::IValue::make_capsule(weight);
    context->saved_data["has_bias"] = bias.has_value();
    return linear(x, weight->value->dequantize(), bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list result(3);
    if (context->needs_input_grad(0)) {
      const auto capsule = c10::static_intrusive_pointer_cast<WeightCapsule>(context->saved_data["weight"].toCapsule());
      result[0] = matmul_transposed(gradients[0].contiguous(), capsule->value->dequantize().t());
    }
    // needs_input_grad() counts tensor arguments only, of which the bias is the second.
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) result[2] = gradients[0].sum(0);
    return result;
  }
};

std::vector<ParameterScope> make_linear_scopes(const ParameterScope& scope, const std::vector<const char*>& names) {
  std::vector<ParameterScope> scopes;
  scopes.reserve(names.size());
  for (const char* name : names) scopes.push_back(scope / name);
  return scopes;
}

/// Returns whether the weights of these Linears are never trained and stay on the device, so that their
/// rows may be padded.
bool can_pad_weights(const std::vector<ParameterScope>& scopes) {
  const ParameterStore& store = scopes.front().store();
  return store.lora() && !store.unshards_blocks() && std::ranges::none_of(scopes, [&](const ParameterScope& scope) {
           return store.lora()->matches_modules_to_save(scope.path() + ".weight");
         });
}

/// Storage for the parameters of a group of Linears. Empty entries stand for storage of their own.
struct GroupStorage {
  std::vector<WeightStorage> weights;               // of each Linear
  std::vector<LoraAdapter::Storage> adapters;       // of each Linear
  std::optional<BorderedWeights> bordered_weights;  // holds the others, if defined
};

/// Returns whether A and B get storage next to the weights: their rows are then strided. Not in fp32,
/// where the optimizers update the parameters themselves, which must be dense.
bool can_place_adapters_in_border(const std::vector<ParameterScope>& scopes, bool uses_dora) {
  const at::TensorOptions& options = scopes.front().store().options();
  const bool pads_rows = align_width(1, options) > 1;
  return pads_rows && options.dtype() != at::kFloat && !uses_dora && can_pad_weights(scopes);
}

/// Allocates storage in which one product reads all weights, if all of them or none are quantized.
/// Quantized weights with DoRA get storage of their own, too: each is dequantized alone, which takes
/// fewer launches if its own tensors are adjacent.
GroupStorage allocate_group_storage(const std::vector<ParameterScope>& scopes, const LinearGroupShape& shape,
                                    bool uses_dora) {
  const size_t count = scopes.size();
  GroupStorage storage{.weights = std::vector<WeightStorage>(count),
                       .adapters = std::vector<LoraAdapter::Storage>(count),
                       .bordered_weights = {}};
  const ParameterStore& store = scopes.front().store();
  const bool is_quantized = std::ranges::all_of(scopes, &ParameterScope::should_quantize_linear_weight);
  const bool is_mixed = !is_quantized && std::ranges::any_of(scopes, &ParameterScope::should_quantize_linear_weight);
  const bool has_adapters = std::ranges::any_of(shape.ranks, [](int64_t rank) { return rank > 0; });
  if (has_adapters && !is_mixed && can_place_adapters_in_border(scopes, uses_dora)) {
    storage.bordered_weights.emplace(shape, /*has_weights=*/!is_quantized, store.options());
    for (size_t i = 0; i < count; ++i) {
      if (shape.ranks[i] > 0) storage.adapters[i] = storage.bordered_weights->adapter_storage(i);
      if (!is_quantized) storage.weights[i].tensor = storage.bordered_weights->weight_storage(i);
    }
  } else {
    const auto lora_a = allocate_adjacent_tensors(shape.ranks, {shape.in_features}, store.options());
    for (size_t i = 0; i < count; ++i) storage.adapters[i].a = lora_a[i];
  }
  if (is_quantized && !uses_dora) {
    const auto quantized_weights = store.allocate_quantized_weights(shape.out_features, shape.in_features);
    for (size_t i = 0; i < count; ++i) storage.weights[i].quantized_weight = quantized_weights[i];
  } else if (!is_quantized && !is_mixed && !storage.bordered_weights) {
    const int64_t row_stride =
        can_pad_weights(scopes) ? align_width(shape.in_features, store.options()) : shape.in_features;
    const auto tensors = allocate_adjacent_matrices(shape.out_features, shape.in_features, row_stride, store.options(),
                                                    shape.column_alignment);
    for (size_t i = 0; i < count; ++i) storage.weights[i].tensor = tensors[i];
  }
  return storage;
}

}  // namespace

FusedPrologue::Output FusedPrologue::forward_with_border(const std::vector<at::Tensor>& inputs,
                                                         int64_t /*border_columns*/) const {
  return forward(inputs, /*for_backward=*/false);
}

FusedPrologue::Output FusedPrologue::forward_add_residual(const std::vector<at::Tensor>& inputs,
                                                          const at::Tensor& residual) const {
  const at::NoGradGuard no_gradients;
  Output output = forward(inputs, /*for_backward=*/false);
  output.value.add_(residual);
  return output;
}

std::vector<at::Tensor> FusedPrologue::backward_add_residual_gradient(
    const std::vector<at::Tensor>& inputs, const Output& output, const at::Tensor& gradient,
    const std::vector<bool>& needs_grad, const at::Tensor& residual_stream_gradient) const {
  auto gradients = backward(inputs, output, gradient, needs_grad);
  gradients.front().add_(residual_stream_gradient);
  return gradients;
}

at::Tensor LinearInput::value() const {
  if (!prologue_) return inputs_.front();
  return PrologueFunction::apply(c10::make_intrusive<PrologueCapsule>(prologue_), at::TensorList(inputs_),
                                 /*has_residual=*/false);
}

at::Tensor LinearInput::add_residual(const at::Tensor& residual) const {
  if (!prologue_) return inputs_.front() + residual;
  variable_list tensors = inputs_;
  tensors.push_back(residual);
  return PrologueFunction::apply(c10::make_intrusive<PrologueCapsule>(prologue_), at::TensorList(tensors),
                                 /*has_residual=*/true);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.is_cuda()) return at::linear(x, weight, bias);
  return CpuLinearFunction::apply(x, weight, bias.defined() ? std::optional{bias} : std::nullopt);
}

at::Tensor linear(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) {
  if (!weight.is_quantized()) return linear(x, weight.values(), bias);
  return QuantizedLinearFunction::apply(x, c10::make_intrusive<WeightCapsule>(weight.quantized_weight()),
                                        bias.defined() ? std::optional{bias} : std::nullopt);
}

MergedLinear::MergedLinear(const std::vector<ParameterScope>& scopes, int64_t in_features,
                           const std::vector<int64_t>& out_features, bool bias, double initial_gain,
                           OutputColumns output_columns) {
  const at::TensorOptions& options = scopes.front().store().options();
  const int64_t column_alignment = output_columns == OutputColumns::kAligned ? align_width(1, options) : 1;
  std::vector<const LoraSettings*> settings;
  settings.reserve(scopes.size());
  for (const ParameterScope& scope : scopes) settings.push_back(scope.register_linear());
  std::vector<at::Tensor> biases(scopes.size());
  const bool uses_dora =
      std::ranges::any_of(settings, [](const LoraSettings* lora) { return lora != nullptr && lora->use_dora; });
  std::vector<int64_t> ranks;
  ranks.reserve(settings.size());
  for (const LoraSettings* lora : settings) ranks.push_back(lora != nullptr ? lora->rank : 0);
  GroupStorage storage = allocate_group_storage(
      scopes,
      {.in_features = in_features, .out_features = out_features, .ranks = ranks, .column_alignment = column_alignment},
      uses_dora);
  if (bias) biases = allocate_adjacent_tensors(out_features, {}, options, column_alignment);

  auto group = std::make_shared<LinearGroup>(LinearGroup{.members = {},
                                                         .options = options,
                                                         .in_features = in_features,
                                                         .column_alignment = column_alignment,
                                                         .output_columns = output_columns});
  for (size_t i = 0; i < scopes.size(); ++i) {
    const ParameterScope& scope = scopes[i];
    const int64_t columns = out_features[i];
    LinearGroup::Member member{
        .weight = scope.add_linear_weight({columns, in_features}, InitialValues::kaiming(in_features, initial_gain),
                                          storage.weights[i]),
        .bias = {},
        .adapter = {},
        .first_column = group->members.empty() ? 0 : group->columns(),
        .columns = columns};
    if (bias) member.bias = scope.add_parameter("bias", {columns}, InitialValues::zeros(), biases[i]);
    if (settings[i] != nullptr) member.adapter.emplace(scope, *settings[i], storage.adapters[i], in_features, columns);
    group->members.push_back(std::move(member));
  }
  group->bordered_weights = std::move(storage.bordered_weights);
  linear_group_ = std::move(group);
}

MergedLinear::MergedLinear(const ParameterScope& scope, const std::vector<const char*>& names, int64_t in_features,
                           const std::vector<int64_t>& out_features, bool bias, OutputColumns output_columns)
    : MergedLinear(make_linear_scopes(scope, names), in_features, out_features, bias, /*initial_gain=*/1,
                   output_columns) {}

at::Tensor MergedLinear::operator()(const LinearInput& x, const at::Tensor& residual) const {
  if (!linear_group_->has_dora()) return apply_linear_group(linear_group_, x, residual);
  const at::Tensor value = x.value().narrow(1, 0, linear_group_->in_features);
  std::vector<at::Tensor> columns;
  for (const auto& member : linear_group_->members) {
    const at::Tensor y = member.adapter ? member.adapter->forward_dora(value, member.weight, member.bias)
                                        : linear(value, member.weight, member.bias);
    columns.push_back(linear_group_->has_padding_columns() ? pad_to_aligned_width(y) : y);
  }
  const at::Tensor y = columns.size() == 1 ? columns.front() : at::cat(columns, 1);
  return residual.defined() ? y + residual : y;
}

ResidualBranch MergedLinear::forward_branch(const LinearInput& x) const {
  const at::Tensor& stream = x.inputs().front();
  // If nothing can be fused (no gradient, no prologue, or DoRA), autograd adds the gradients of the
  // stream.
  if (!stream.requires_grad() || !x.prologue() || linear_group_->has_dora()) return {(*this)(x), stream};
  return apply_linear_branch(linear_group_, x);
}

LoraAdapter::LoraAdapter(const ParameterScope& scope, const LoraSettings& settings, const Storage& storage,
                         int64_t in_features, int64_t out_features)
    : a_(scope.add_adapter_parameter("lora_A.weight", {settings.rank, in_features},
                                     InitialValues::uniform(1 / std::sqrt(static_cast<double>(in_features))),
                                     storage.a)),
      b_(scope.add_adapter_parameter("lora_B.weight", {out_features, settings.rank}, InitialValues::zeros(),
                                     storage.b)),
      scale_(settings.scale()),
      dropout_probability_(settings.dropout),
      dropout_layer_id_(derive_stream_seed(0, scope.path())) {
  if (settings.use_dora) {
    magnitude_ = scope.add_adapter_parameter("lora_magnitude_vector", {out_features}, InitialValues::ones());
  }
}

bool LoraAdapter::is_dropout_active() const {
  return dropout_probability_ > 0 && is_grad_needed();
}

IndependentDropouts LoraAdapter::make_dropouts(const at::Tensor& x, int64_t count) const {
  return {x, count, dropout_probability_, dropout_layer_id_};
}

at::Tensor LoraAdapter::forward_dora(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) const {
  const at::Tensor input = is_dropout_active() ? segment_dropout(x, dropout_probability_, dropout_layer_id_) : x;
  // addmm_ adds B A in place within the matrix product, so neither pass allocates another tensor
  // [rows, out].
  const at::Tensor merged_output =
      nn::linear(input, weight, {}).addmm_(nn::linear(input, a_, {}), b_.t(), /*beta=*/1, /*alpha=*/scale_);
  const at::Tensor scaled_output = merged_output * compute_mag_norm_scale(weight);
  // As in PEFT, dropped elements still pass through the base weight.
  if (is_dropout_active()) return nn::linear(x - input, weight, bias) + scaled_output;
  return bias.defined() ? scaled_output + bias : scaled_output;
}

at::Tensor LoraAdapter::compute_mag_norm_scale(const LinearWeight& weight) const {
  const auto dtype = magnitude_.scalar_type();
  at::Tensor row_norms;
  {
    const at::NoGradGuard no_gradients;
    const at::Tensor values = weight.values();
    // Dequantized values are a new tensor, which may be overwritten.
    row_norms = compute_row_norms(weight.is_quantized() ? values.addmm_(b_, a_, /*beta=*/1, /*alpha=*/scale_)
                                                        : at::addmm(values, b_, a_, /*beta=*/1, /*alpha=*/scale_));
  }
  return (magnitude_.to(at::toOpMathType(dtype)) / row_norms).to(dtype);
}

at::Tensor compute_row_norms(const at::Tensor& weight) {
  return at::linalg_vector_norm(weight, 2, /*dim=*/1, /*keepdim=*/false, at::toOpMathType(weight.scalar_type()));
}

}  // namespace vlmtrain::nn
