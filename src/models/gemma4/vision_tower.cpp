#include "models/gemma4/vision_tower.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "models/gemma4/patch_inputs.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models::gemma4 {

namespace {

using nn::InitialValues;

/// at::clamp with scalars `min` and `max` on x's device. Its backward pass has no meta kernel, which
/// dry runs on the host need.
struct ClampFunction : torch::autograd::Function<ClampFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& min,
                            const at::Tensor& max) {
    context->save_for_backward({x, min, max});
    return at::clamp(x, min, max);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &min = saved[1], &max = saved[2];
    return {gradients[0] * at::bitwise_and(x >= min, x <= max), {}, {}};
  }
};

/// Adds an untrained number of the checkpoint.
at::Tensor add_bound(const nn::ParameterScope& scope, std::string_view name, double initial_value) {
  return scope.with_component(nn::Component::kBuffer).add_parameter(name, {}, {initial_value, 0});
}

}  // namespace

ClippableLinear::ClippableLinear(const nn::ParameterScope& scope, int64_t in_features, int64_t out_features,
                                 bool is_clipped, double initial_gain)
    : linear_(scope / "linear", in_features, out_features, /*bias=*/false, initial_gain) {
  if (!is_clipped) return;
  constexpr double kNoBound = std::numeric_limits<double>::infinity();
  input_min_ = add_bound(scope, "input_min", -kNoBound);
  input_max_ = add_bound(scope, "input_max", kNoBound);
  output_min_ = add_bound(scope, "output_min", -kNoBound);
  output_max_ = add_bound(scope, "output_max", kNoBound);
}

at::Tensor ClippableLinear::operator()(const at::Tensor& x) const {
  if (!input_min_.defined()) return linear_(x);
  return ClampFunction::apply(linear_(ClampFunction::apply(x, input_min_, input_max_)), output_min_, output_max_);
}

TowerBlock::TowerBlock(const nn::ParameterScope& scope, const TowerConfig& config)
    : head_shape_(config.heads),
      norm_eps_(config.rms_norm_eps),
      query_(scope / "self_attn" / "q_proj", config.hidden_size, config.heads.num_heads * config.heads.head_dim,
             config.has_clipped_linears),
      key_(scope / "self_attn" / "k_proj", config.hidden_size, config.heads.num_key_value_heads * config.heads.head_dim,
           config.has_clipped_linears),
      value_(scope / "self_attn" / "v_proj", config.hidden_size,
             config.heads.num_key_value_heads * config.heads.head_dim, config.has_clipped_linears),
      out_proj_(scope / "self_attn" / "o_proj", config.heads.num_heads * config.heads.head_dim, config.hidden_size,
                config.has_clipped_linears),
      // Scores are not divided, so that queries of gain 1 would make random attention sharp.
      qk_norm_(scope / "self_attn", config.heads.head_dim, config.rms_norm_eps, nn::NormGain::kWeight,
               1 / std::sqrt(static_cast<double>(config.heads.head_dim))),
      gate_(scope / "mlp" / "gate_proj", config.hidden_size, config.intermediate_size, config.has_clipped_linears),
      up_(scope / "mlp" / "up_proj", config.hidden_size, config.intermediate_size, config.has_clipped_linears),
      down_(scope / "mlp" / "down_proj", config.intermediate_size, config.hidden_size, config.has_clipped_linears),
      before_attention_(scope / "input_layernorm", config.hidden_size, config.rms_norm_eps),
      after_attention_(scope / "post_attention_layernorm", config.hidden_size, config.rms_norm_eps),
      before_mlp_(scope / "pre_feedforward_layernorm", config.hidden_size, config.rms_norm_eps),
      after_mlp_(scope / "post_feedforward_layernorm", config.hidden_size, config.rms_norm_eps) {}

at::Tensor TowerBlock::operator()(const at::Tensor& x, const TowerContext& context) const {
  const at::Tensor attention_input = before_attention_(x);
  const auto [query, key, value] = qk_norm_.split_and_rotate_heads(
      at::cat({query_(attention_input), key_(attention_input), value_(attention_input)}, 1), head_shape_,
      context.rotary_table);
  const at::Tensor heads = nn::attention(query, key, nn::rms_norm_without_weight(value, norm_eps_), context.images,
                                         /*is_causal=*/false);
  const at::Tensor attention_output = after_attention_.make_linear_input(out_proj_(heads.flatten(1))).add_residual(x);
  const at::Tensor mlp_input = before_mlp_(attention_output);
  const at::Tensor gated = nn::geglu(at::cat({gate_(mlp_input), up_(mlp_input)}, 1)).value();
  return after_mlp_.make_linear_input(down_(gated)).add_residual(attention_output);
}

VisionTower::VisionTower(const nn::ParameterScope& scope, const TowerConfig& config, const PatchShape& patches)
    : config_(config),
      patch_format_(patches.patch_format()),
      patch_projection_(scope / "patch_embedder" / "input_proj", 3 * patches.patch_size * patches.patch_size,
                        config.hidden_size, /*bias=*/false),
      position_table_((scope / "patch_embedder")
                          .add_embedding("position_embedding_table",
                                         {kNumPatchAxes, config.num_positions, config.hidden_size},
                                         InitialValues::kaiming(config.hidden_size))),
      blocks_(scope / "encoder" / "layers", config.num_layers, config, memory::Component::kVision) {
  // A head has head_dim / 2 pairs, half of them for each axis.
  const int64_t pairs_per_axis = config.heads.head_dim / (2 * kNumPatchAxes);
  const at::Tensor frequencies = nn::compute_inv_freq(2 * pairs_per_axis, config.rope_theta);
  const auto device = position_table_.device();
  rotary_frequencies_ = at::cat({frequencies, frequencies}).to(device);
  const auto indices = at::TensorOptions(at::kLong);
  rotary_axes_ = at::cat({at::zeros({pairs_per_axis}, indices), at::ones({pairs_per_axis}, indices)}).to(device);
  if (!config.standardizes) return;
  const auto buffers = scope.with_component(nn::Component::kBuffer);
  feature_bias_ = buffers.add_parameter("std_bias", {config.hidden_size}, InitialValues::zeros());
  feature_scale_ = buffers.add_parameter("std_scale", {config.hidden_size}, InitialValues::ones());
}

at::Tensor VisionTower::pool(const at::Tensor& patches) const {
  const auto type = at::toOpMathType(patches.scalar_type());
  at::Tensor tokens = patches.view({-1, patch_format_.patches_per_token(), patches.size(1)})
                          .mean(at::IntArrayRef{1}, /*keepdim=*/false, type) *
                      std::sqrt(static_cast<double>(config_.hidden_size));
  if (feature_bias_.defined()) tokens = (tokens - feature_bias_.to(type)) * feature_scale_.to(type);
  return tokens.to(patches.scalar_type());
}

at::Tensor VisionTower::operator()(const image::ByteImages& pixels, std::span<const data::PatchGrid> grids,
                                   int64_t recomputed_blocks, at::Tensor* patch_features) const {
  const auto [patches, positions] = make_patch_inputs(pixels, grids, patch_format_, position_table_);
  const at::Tensor embeddings =
      patch_projection_(patches, sum_position_embeddings(position_table_.flatten(0, 1), positions, /*stride=*/1,
                                                         /*row_offset=*/config_.num_positions));

  std::vector<int64_t> patches_per_image;
  for (const data::PatchGrid& grid : grids)
    patches_per_image.insert(patches_per_image.end(), static_cast<size_t>(grid.frames), grid.patches_per_frame());
  // nn::attention() divides scores by √head_dim, this tower does not.
  const double rotary_scale = std::pow(static_cast<double>(config_.heads.head_dim), 0.25);
  TowerContext context{
      .images = nn::Segments::from_lengths(std::move(patches_per_image), position_table_.device()),
      .rotary_table = nn::RotaryTable::from_axes(positions, rotary_axes_, rotary_frequencies_, rotary_scale)};
  context.rotary_table.num_parts = kNumPatchAxes;
  const at::Tensor encoded = blocks_.run(embeddings, recomputed_blocks, context).last_hidden_state;
  if (patch_features != nullptr) *patch_features = encoded;
  return pool(encoded);
}

}  // namespace vlmtrain::models::gemma4
