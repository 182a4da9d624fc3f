#include "models/qwen2_vl/vision_tower.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "models/network/patch_embedding.h"
#include "vlmtrain/memory/copy.h"
#include "vlmtrain/nn/activation.h"
#include "vlmtrain/nn/attention.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

constexpr double kNormEpsilon = 1e-6;  // transformers has it in the code, not in the config

std::variant<nn::LayerNorm, nn::RmsNorm> make_norm(const nn::ParameterScope& scope, const VisionConfig& config) {
  if (config.is_gated) return nn::RmsNorm(scope, config.hidden_size, kNormEpsilon);
  return nn::LayerNorm(scope, config.hidden_size, kNormEpsilon);
}

nn::Linears make_first_linears(const nn::ParameterScope& scope, const VisionConfig& config) {
  const int64_t features = config.intermediate_size;
  if (config.is_gated) return {scope, {"gate_proj", "up_proj"}, config.hidden_size, {features, features}, true};
  return {scope, {config.first_linear}, config.hidden_size, {features}, true};
}

}  // namespace

Norm::Norm(const nn::ParameterScope& scope, const VisionConfig& config) : norm_(make_norm(scope, config)) {}

nn::LinearInput Norm::make_linear_input(const at::Tensor& x) const {
  return std::visit([&](const auto& norm) { return norm.make_linear_input(x); }, norm_);
}

FeedForward::FeedForward(const nn::ParameterScope& scope, const VisionConfig& config)
    : is_gated_(config.is_gated),
      activation_(config.activation),
      gate_up_proj_(make_first_linears(scope, config)),
      down_proj_(scope / (config.is_gated ? "down_proj" : config.second_linear), config.intermediate_size,
                 config.hidden_size, true, residual_branch_gain(config.blocks)) {}

at::Tensor FeedForward::operator()(const nn::LinearInput& x) const {
  const nn::Branch branch = gate_up_proj_.branch(x);
  return down_proj_(is_gated_ ? nn::swiglu(branch.value) : nn::apply_activation(activation_, branch.value),
                    /*residual=*/branch.stream);
}

VisionBlock::VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config)
    : heads_{.num_heads = config.heads,
             .num_key_value_heads = config.heads,
             .head_dim = config.hidden_size / config.heads},
      norm1_(scope / "norm1", config),
      norm2_(scope / "norm2", config),
      qkv_(scope / "attn" / "qkv", config.hidden_size, 3 * config.hidden_size, true),
      out_proj_(scope / "attn" / "proj", config.hidden_size, config.hidden_size, true,
                residual_branch_gain(config.blocks)),
      feed_forward_(scope / "mlp", config) {}

at::Tensor VisionBlock::attend(const at::Tensor& qkv, const VisionContext& context) const {
  const auto [query, key, value] = nn::split_and_rotate_heads(qkv, heads_, context.rotary);
  return nn::attention(query, key, value, context.segments, /*causal=*/false).flatten(1);
}

at::Tensor VisionBlock::operator()(const at::Tensor& x, const VisionContext& context) const {
  nn::Branch branch = qkv_.branch(norm1_.make_linear_input(x));
  return feed_forward_(
      norm2_.make_linear_input(out_proj_(attend(branch.take_value(), context), /*residual=*/branch.stream)));
}

VisionTower::VisionTower(const nn::ParameterScope& scope, const VisionConfig& config)
    : config_(config),
      patch_weight_(
          (scope / "patch_embed" / "proj")
              .parameter(
                  "weight", {config.hidden_size, 3, config.temporal_patch_size, config.patch_size, config.patch_size},
                  nn::InitialValues::kaiming(3 * config.temporal_patch_size * config.patch_size * config.patch_size))),
      patch_bias_(
          config.patch_bias
              ? (scope / "patch_embed" / "proj").parameter("bias", {config.hidden_size}, nn::InitialValues::zeros())
              : at::Tensor()),
      blocks_(scope / "blocks", config.blocks, config, memory::Component::kVision) {
  const int64_t pairs_per_axis = config.hidden_size / config.heads / 4;
  const at::Tensor frequencies = nn::compute_inv_freq(2 * pairs_per_axis, config.rope_theta);
  const auto indices = at::TensorOptions(at::kLong);
  rotary_frequencies_ = at::cat({frequencies, frequencies}).to(patch_weight_.device());
  rotary_axes_ =
      at::cat({at::zeros({pairs_per_axis}, indices), at::ones({pairs_per_axis}, indices)}).to(patch_weight_.device());
}

at::Tensor VisionTower::embed(const image::BytePixels& pixels) const {
  return embed_patches(pixels, patch_weight_, patch_bias_);
}

BlockOutputs VisionTower::operator()(const at::Tensor& embedded, const PatchLayout& layout, int64_t recomputed_blocks,
                                     const HiddenStateOptions& options) const {
  const auto device = embedded.device();
  const at::Tensor positions = memory::copy_to_device(layout.positions, device).view({2, -1});
  const auto rotary = nn::RotaryTable::from_axes(positions, rotary_axes_, rotary_frequencies_);
  const VisionContext frames{nn::Segments::from_lengths(layout.frame_patches, device), rotary};
  const VisionContext windows{nn::Segments::from_lengths(layout.window_patches, device), rotary};
  const auto get_context = [&](int64_t block) -> const VisionContext& {
    return config_.has_windows(block) ? windows : frames;
  };
  return blocks_.run_with_contexts(embedded, recomputed_blocks, get_context, options);
}

PatchMerger::PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config)
    : merged_size_(config.hidden_size * config.patches_per_token()),
      norm_(scope / "ln_q", config),
      first_(scope / "mlp" / "0", merged_size_, merged_size_, true),
      second_(scope / "mlp" / "2", merged_size_, config.output_size, true) {}

at::Tensor PatchMerger::operator()(const at::Tensor& x) const {
  return second_(nn::apply_activation(Activation::kGelu, first_(norm_(x).view({-1, merged_size_}))));
}

}  // namespace vlmtrain::models::qwen2_vl
