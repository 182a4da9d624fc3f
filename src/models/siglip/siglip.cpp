#include "models/siglip/siglip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/gelu.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention.h"

namespace vlmtrain::models {

namespace {

/// Random positions have to stand out from patches of variance 1: with the usual 0.02 a small tower learns late where
/// things are.
constexpr double kPositionDeviation = 0.5;

/// Which entry of the position table each patch of a full tile takes. Idefics3 finds it by bucketing fractional
/// coordinates in fp32; the same arithmetic is done here, since rounding can move a patch into its neighbour's bucket.
at::Tensor position_ids(int64_t side) {
  const auto fp32 = at::TensorOptions(at::kFloat);
  const double step = 1.0 / static_cast<double>(side);
  const at::Tensor boundaries = at::arange(step, 1.0, step, fp32);
  const at::Tensor coordinates = (at::arange(side, fp32) * static_cast<float>(step)).clamp_max(1.0 - 1e-6);
  const at::Tensor buckets = at::bucketize(coordinates, boundaries, /*out_int32=*/false, /*right=*/true);
  return (buckets.unsqueeze(1) * side + buckets.unsqueeze(0)).flatten();
}

}  // namespace

SiglipConfig SiglipConfig::from_json(const nlohmann::json& json, const std::string& source) {
  SiglipConfig config;
  config.hidden_size = io::get_or<int64_t>(json, "hidden_size", config.hidden_size, source);
  config.intermediate_size = io::get_or<int64_t>(json, "intermediate_size", config.intermediate_size, source);
  config.layers = io::get_or<int64_t>(json, "num_hidden_layers", config.layers, source);
  config.heads = io::get_or<int64_t>(json, "num_attention_heads", config.heads, source);
  config.image_size = io::get_or<int64_t>(json, "image_size", config.image_size, source);
  config.patch_size = io::get_or<int64_t>(json, "patch_size", config.patch_size, source);
  config.layer_norm_eps = io::get_or<double>(json, "layer_norm_eps", config.layer_norm_eps, source);
  const auto activation = io::get_or<std::string>(json, "hidden_act", "gelu_pytorch_tanh", source);
  if (activation != "gelu_pytorch_tanh") {
    throw data_error("{}: hidden_act {} is not supported in the vision tower; gelu_pytorch_tanh is", source,
                     activation);
  }
  if (io::get_or<int64_t>(json, "num_channels", 3, source) != 3) {
    throw data_error("{}: num_channels must be 3", source);
  }
  if (config.heads < 1 || config.hidden_size % config.heads != 0) {
    throw data_error("{}: hidden_size {} is not a multiple of num_attention_heads {}", source, config.hidden_size,
                     config.heads);
  }
  if (config.patch_size < 1 || config.image_size < config.patch_size) {
    throw data_error("{}: image_size {} holds no patch of patch_size {}", source, config.image_size, config.patch_size);
  }
  return config;
}

SiglipBlock::SiglipBlock(const nn::ParameterScope& scope, const SiglipConfig& config)
    : heads_(config.heads),
      norm1_(scope / "layer_norm1", config.hidden_size, config.layer_norm_eps),
      norm2_(scope / "layer_norm2", config.hidden_size, config.layer_norm_eps),
      query_(scope / "self_attn" / "q_proj", config.hidden_size, config.hidden_size, true),
      key_(scope / "self_attn" / "k_proj", config.hidden_size, config.hidden_size, true),
      value_(scope / "self_attn" / "v_proj", config.hidden_size, config.hidden_size, true),
      out_(scope / "self_attn" / "out_proj", config.hidden_size, config.hidden_size, true,
           residual_branch_gain(config.layers)),
      fc1_(scope / "mlp" / "fc1", config.hidden_size, config.intermediate_size, true),
      fc2_(scope / "mlp" / "fc2", config.intermediate_size, config.hidden_size, true,
           residual_branch_gain(config.layers)) {}

at::Tensor SiglipBlock::attend(const at::Tensor& x, const nn::Segments& tiles) const {
  const auto split_heads = [this](const at::Tensor& rows) { return rows.view({rows.size(0), heads_, -1}); };
  return out_(nn::attention(split_heads(query_(x)), split_heads(key_(x)), split_heads(value_(x)), tiles,
                            /*causal=*/false)
                  .flatten(1));
}

at::Tensor SiglipBlock::operator()(const at::Tensor& x, const nn::Segments& tiles) const {
  const at::Tensor attended = x + attend(norm1_(x), tiles);
  return attended + fc2_(at::gelu(fc1_(norm2_(attended)), "tanh"));
}

SiglipTower::SiglipTower(const nn::ParameterScope& scope, const SiglipConfig& config)
    : config_(config),
      patch_weight_((scope / "embeddings" / "patch_embedding")
                        .parameter("weight", {config.hidden_size, 3, config.patch_size, config.patch_size},
                                   nn::InitialValues::for_fan_in(3 * config.patch_size * config.patch_size))),
      patch_bias_((scope / "embeddings" / "patch_embedding")
                      .parameter("bias", {config.hidden_size}, nn::InitialValues::zeros())),
      position_((scope / "embeddings" / "position_embedding")
                    .parameter("weight", {config.patches_per_side() * config.patches_per_side(), config.hidden_size},
                               {.mean = 0, .deviation = kPositionDeviation})),
      position_ids_(position_ids(config.patches_per_side()).to(patch_weight_.device())),
      blocks_(scope / "encoder" / "layers", config.layers, config, memory::Component::kVision),
      post_norm_(scope / "post_layernorm", config.hidden_size, config.layer_norm_eps) {}

at::Tensor SiglipTower::embed(const at::Tensor& pixels) const {
  const int64_t tiles = pixels.size(0);
  const int64_t side = config_.patches_per_side();
  const int64_t patch = config_.patch_size;
  // As a convolution without padding does, drops the pixels beyond the last whole patch: 384 is no multiple of 14.
  const at::Tensor whole = pixels.narrow(2, 0, side * patch).narrow(3, 0, side * patch);
  const at::Tensor patches = whole.view({tiles, 3, side, patch, side, patch})
                                 .permute({0, 2, 4, 1, 3, 5})
                                 .reshape({tiles * side * side, 3 * patch * patch});
  const at::Tensor embedded = nn::linear(patches, patch_weight_.flatten(1), patch_bias_);
  const at::Tensor positions = position_.index_select(0, position_ids_);
  return (embedded.view({tiles, side * side, -1}) + positions).flatten(0, 1);
}

at::Tensor SiglipTower::operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.size(2) == config_.image_size && pixels.size(3) == config_.image_size,
                 "tiles of {}×{} for a tower of {}", pixels.size(2), pixels.size(3), config_.image_size);
  const int64_t side = config_.patches_per_side();
  const auto tiles = nn::Segments::uniform(pixels.size(0), side * side, pixels.device());
  return post_norm_(blocks_.run(embed(pixels), recomputed_blocks, tiles));
}

}  // namespace vlmtrain::models
