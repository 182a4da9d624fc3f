#include "vlmtrain/nn/mixers/gated_delta_net.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "nn/mixers/delta_inputs.h"
#include "nn/mixers/delta_rule.h"
#include "nn/value_capsule.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/layers/norm.h"

namespace vlmtrain::nn {

namespace {

/// Initial log decay rates: states halve after 2 to 80 rows for the initial step bias of 1. With
/// transformers' initialization, the logarithms of 0.01 to 16, most states last for one row, and the
/// norm of such an output hardly depends on query, key and gates.
constexpr InitialValues kInitialALog{.mean = -3, .deviation = 2, .is_uniform = true};

/// The sizes and the layout of a forward pass.
struct DeltaContext {
  GatedDeltaShape shape;
  std::shared_ptr<const ChunkLayout> layout;
};
using DeltaContextCapsule = ValueCapsule<DeltaContext>;

/// Returns the dtype of the rule's output for a model of `dtype`. Gradients of a norm of small values
/// are large, too large for fp16.
at::ScalarType choose_output_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf ? at::kFloat : dtype;
}

/// Returns the rows of the stream from the rule's output: [chunks, heads, kChunkRows, value_dim] →
/// [rows, heads · value_dim].
at::Tensor to_stream_rows(const at::Tensor& chunks, const ChunkLayout& layout, at::ScalarType dtype) {
  return chunks.transpose(1, 2)
      .to(dtype, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous)
      .reshape({layout.num_chunks * kChunkRows, -1})
      .index_select(0, layout.slots);
}

/// The delta rule with the convolution and the gates before it. Saves its inputs only.
struct GatedDeltaFunction : torch::autograd::Function<GatedDeltaFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& qkv, const at::Tensor& beta,
                            const at::Tensor& step, const at::Tensor& convolution, const at::Tensor& a_log,
                            const at::Tensor& step_bias, const c10::intrusive_ptr<DeltaContextCapsule>& capsule) {
    context->save_for_backward({qkv, beta, step, convolution, a_log, step_bias});
    context->saved_data["context"] = c10::IValue::make_capsule(capsule);
    const auto& [shape, layout] = capsule->value;
    const ChunkedDeltaInputs inputs({qkv, beta, step, convolution, a_log, step_bias}, shape, *layout);
    const auto output = delta_rule(inputs.inputs(), layout->chunks_per_step, /*with_states=*/false);
    return to_stream_rows(output.value, *layout, choose_output_dtype(qkv.scalar_type()));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto capsule =
        c10::static_intrusive_pointer_cast<DeltaContextCapsule>(context->saved_data["context"].toCapsule());
    const auto& [shape, layout] = capsule->value;
    const auto saved = context->get_saved_variables();
    ChunkedDeltaInputs inputs({saved[0], saved[1], saved[2], saved[3], saved[4], saved[5]}, shape, *layout);
    const auto type = inputs.inputs().value.scalar_type();
    const at::Tensor gradient =
        (gradients[0].index_select(0, layout->rows).to(type).view({layout->num_chunks, kChunkRows, -1}) *
         layout->is_row)
            .unflatten(2, {shape.value_heads, shape.value_dim})
            .transpose(1, 2)
            .contiguous();
    DeltaRuleInputs rule_gradients = delta_rule_backward(inputs.inputs(), layout->chunks_per_step, gradient);
    DeltaProjections result = std::move(inputs).backward(
        std::move(rule_gradients), {.convolution = context->needs_input_grad(3),
                                    .gates = context->needs_input_grad(4) || context->needs_input_grad(5)});
    return {result.qkv, result.beta, result.step, result.convolution, result.a_log, result.step_bias, {}};
  }
};

/// rms_norm(x) · weight · silu(gate) per head, for inputs x and gate [rows, heads · features] and
/// weight [features], in the dtype of the gate. Its statistic is rstd, [rows · heads, 1].
class GatedNormPrologue final : public FusedPrologue {
 public:
  explicit GatedNormPrologue(double eps) : eps_(eps) {}

  Output forward(const std::vector<at::Tensor>& inputs, bool /*for_backward*/) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor &x = inputs[0], &gate = inputs[1];
    const at::Tensor weight = inputs[2].to(x.scalar_type());
    auto [value, rstd] = rms_norm(view_heads(x, weight), weight, eps_);
    return {.value = value.view_as(x).mul_(at::silu(gate)).to(gate.scalar_type()), .statistics = {rstd}};
  }

  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& output,
                                   const at::Tensor& gradient, const std::vector<bool>& needs_grad) const override {
    const at::NoGradGuard no_gradients;
    const at::Tensor &x = inputs[0], &gate = inputs[1];
    const at::Tensor weight = inputs[2].to(x.scalar_type());
    std::vector<at::Tensor> gradients(inputs.size());
    if (needs_grad[1]) {
      const at::Tensor normed = rms_norm(view_heads(x, weight), weight, eps_).value.view_as(x);
      gradients[1] = at::silu_backward(normed.mul_(gradient).to(gate.scalar_type()), gate);
    }
    if (!needs_grad[0] && !needs_grad[2]) return gradients;
    const at::Tensor dnormed = at::silu(gate).to(x.scalar_type()).mul_(gradient);
    auto [dx, dweight] = rms_norm_backward(view_heads(dnormed, weight), view_heads(x, weight), output.statistics[0],
                                           weight, needs_grad[0], needs_grad[2]);
    if (needs_grad[0]) gradients[0] = dx.view_as(x);
    if (needs_grad[2]) gradients[2] = dweight.to(inputs[2].scalar_type());
    return gradients;
  }

 private:
  /// [rows, heads · features] → [rows · heads, features]
  static at::Tensor view_heads(const at::Tensor& x, const at::Tensor& weight) { return x.view({-1, weight.size(0)}); }

  double eps_;
};

/// Returns the last rows of each segment of `rows` [rows, channels], with zeros before its first:
/// [segments, count, channels].
at::Tensor copy_last_rows(const at::Tensor& rows, const Segments& segments, int64_t count) {
  std::vector<int64_t> indices;
  std::vector<float> factors;
  int64_t end = 0;
  for (const int64_t length : segments.lengths) {
    end += length;
    for (int64_t i = -count; i < 0; ++i) {
      indices.push_back(end + std::max(i, -length));
      factors.push_back(i >= -length ? 1 : 0);
    }
  }
  const auto device = rows.device();
  const at::Tensor selected = rows.index_select(0, memory::copy_to_device(indices, device));
  const at::Tensor is_row = memory::copy_to_device(at::tensor(factors), device).unsqueeze(1);
  return (selected * is_row.to(rows.scalar_type())).view({std::ssize(segments.lengths), count, rows.size(1)});
}

}  // namespace

/// The projections of x and the residual stream.
struct GatedDeltaNet::Projected {
  at::Tensor qkv, gate, beta, step, stream;
};

GatedDeltaNet::GatedDeltaNet(const ParameterScope& scope, int64_t in_features, const GatedDeltaShape& shape,
                             double norm_eps)
    : shape_(shape),
      norm_eps_(norm_eps),
      in_projections_(scope, {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}, in_features,
                      {shape.num_channels(), shape.num_outputs(), shape.value_heads, shape.value_heads},
                      /*bias=*/false),
      convolution_((scope / "conv1d")
                       .add_parameter("weight", {shape.num_channels(), 1, shape.kernel_size},
                                      InitialValues::kaiming(shape.kernel_size))),
      a_log_(scope.add_parameter("A_log", {shape.value_heads}, kInitialALog)),
      dt_bias_(scope.add_parameter("dt_bias", {shape.value_heads}, InitialValues::ones())),
      norm_weight_((scope / "norm").add_parameter("weight", {shape.value_dim}, InitialValues::ones())) {}

GatedDeltaNet::Projected GatedDeltaNet::project(const LinearInput& x) const {
  const ResidualBranch branch = in_projections_.forward_branch(x);
  // Autograd concatenates the gradients of the parts.
  const auto parts = branch.value.split_with_sizes(
      {shape_.num_channels(), shape_.num_outputs(), shape_.value_heads, shape_.value_heads}, 1);
  return {.qkv = parts[0], .gate = parts[1], .beta = parts[2], .step = parts[3], .stream = branch.stream};
}

GatedDeltaNet::Output GatedDeltaNet::finish(const at::Tensor& rule_output, const Projected& projected) const {
  return {.value = {std::make_shared<GatedNormPrologue>(norm_eps_), {rule_output, projected.gate, norm_weight_}},
          .stream = projected.stream};
}

GatedDeltaNet::Output GatedDeltaNet::operator()(const LinearInput& x,
                                                const std::shared_ptr<const ChunkLayout>& layout) const {
  const Projected projected = project(x);
  return finish(GatedDeltaFunction::apply(projected.qkv, projected.beta, projected.step, convolution_, a_log_, dt_bias_,
                                          c10::make_intrusive<DeltaContextCapsule>(DeltaContext{shape_, layout})),
                projected);
}

GatedDeltaNet::Output GatedDeltaNet::prefill(const LinearInput& x, const ChunkLayout& layout, const Segments& segments,
                                             DeltaNetState& state) const {
  const at::NoGradGuard no_gradients;
  const Projected projected = project(x);
  const ChunkedDeltaInputs inputs({projected.qkv, projected.beta, projected.step, convolution_, a_log_, dt_bias_},
                                  shape_, layout);
  const auto output = delta_rule(inputs.inputs(), layout.chunks_per_step, /*with_states=*/true);
  state = {.states = output.states.index_select(0, layout.segment_order),
           .history = copy_last_rows(projected.qkv, segments, shape_.num_history_rows())};
  return finish(to_stream_rows(output.value, layout, choose_output_dtype(projected.qkv.scalar_type())), projected);
}

GatedDeltaNet::Output GatedDeltaNet::decode(const LinearInput& x, const DeltaNetState& state) const {
  const at::NoGradGuard no_gradients;
  const Projected projected = project(x);
  const at::Tensor output =
      delta_rule_step(make_step_inputs({projected.qkv, projected.beta, projected.step, convolution_, a_log_, dt_bias_},
                                       shape_, state.history),
                      state.states);
  return finish(output.flatten(1).to(choose_output_dtype(projected.qkv.scalar_type())), projected);
}

}  // namespace vlmtrain::nn
