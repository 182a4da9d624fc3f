#include "models/network/sam_vit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>

#include "models/checkpoints/config_checks.h"
#include "models/network/block_list.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::models {

namespace {

/// Adds a table of relative positions, [2 · side − 1, head_dim]; undefined if the config has none.
at::Tensor make_relative_position_table(const nn::ParameterScope& scope, const char* name, const SamVitConfig& config,
                                        int64_t side) {
  if (!config.uses_relative_positions) return {};
  return scope.add_parameter(name, {2 * side - 1, config.hidden_size / config.num_heads}, nn::InitialValues::zeros());
}

/// Expands a table [2 · side − 1, head_dim] to [side, head_dim, side]. Entry [i, :, j] is the row
/// for distance i − j.
at::Tensor gather_relative_positions(const at::Tensor& table, int64_t side) {
  return table.unfold(0, side, 1).flip(2);
}

using nn::InitialValues;
using nn::ParameterScope;

constexpr double kSamPositionEmbeddingStd = 0.5;  // as kPositionEmbeddingStd in vision_transformer.cpp
constexpr double kSamNeckNormEpsilon = 1e-6;      // of SAM's LayerNorm2d

RecomputedBlocks make_sam_vit_blocks(const ParameterScope& scope, const SamVitConfig& config) {
  RecomputedBlocks blocks;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    blocks.add_block(scope.store(), [&] { return SamVitBlock(scope / i, config, config.get_window_size(i)); });
  }
  return blocks;
}

}  // namespace

SamVitConfig SamVitConfig::from_json(const nlohmann::json& json, const std::string& source) {
  constexpr NumberRange kMlpRatioRange{0, 1000};
  SamVitConfig config;
  config.hidden_size = read_size(json, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.output_channels = read_size(json, "output_channels", config.output_channels, kMaxLayerWidth, source);
  config.num_layers = read_size(json, "num_hidden_layers", config.num_layers, kMaxBlocks, source);
  config.num_heads = read_size(json, "num_attention_heads", config.num_heads, kMaxLayerWidth, source);
  config.image_size = read_size(json, "image_size", config.image_size, kMaxImageSide, source);
  config.patch_size = read_size(json, "patch_size", config.patch_size, kMaxImageSide, source);
  config.layer_norm_eps = read_number(json, "layer_norm_eps", config.layer_norm_eps, kNormEpsRange, source);
  config.qkv_bias = io::get_or<bool>(json, "qkv_bias", true, source);
  config.uses_absolute_positions = io::get_or<bool>(json, "use_abs_pos", true, source);
  config.uses_relative_positions = io::get_or<bool>(json, "use_rel_pos", true, source);
  config.window_size = read_size(json, "window_size", config.window_size, kMaxImageSide, source);
  config.global_attention_blocks =
      io::get_or<std::vector<int64_t>>(json, "global_attn_indexes", config.global_attention_blocks, source);
  const auto activation = io::get_or<std::string>(json, "hidden_act", "gelu", source);
  config.activation = parse_activation(activation, "hidden_act", source);
  const double mlp_ratio = read_number(json, "mlp_ratio", 4.0, kMlpRatioRange, source);
  const auto mlp_dim = static_cast<int64_t>(static_cast<double>(config.hidden_size) * mlp_ratio);
  config.mlp_dim = read_size(json, "mlp_dim", mlp_dim, kMaxLayerWidth, source);
  check_size(config.mlp_dim, "mlp_dim", kMaxLayerWidth, source);
  if (io::get_or<int64_t>(json, "num_channels", 3, source) != 3) {
    throw config_error("{}: num_channels must be 3", source);
  }
  if (config.hidden_size % config.num_heads != 0) {
    throw config_error("{}: hidden_size {} is not a multiple of num_attention_heads {}", source, config.hidden_size,
                       config.num_heads);
  }
  if (config.patch_size != kMaskFeatureStride) {
    throw data_error("{}: patch_size {} is not supported; supported: {}", source, config.patch_size,
                     kMaskFeatureStride);
  }
  if (config.image_size % config.patch_size != 0) {
    throw config_error("{}: image_size {} is not a multiple of patch_size {}", source, config.image_size,
                       config.patch_size);
  }
  for (const int64_t block : config.global_attention_blocks) {
    if (block < 0 || block >= config.num_layers) {
      throw config_error("{}: global_attn_indexes names layer {}, but num_hidden_layers is {}", source, block,
                         config.num_layers);
    }
  }
  return config;
}

double SamVitConfig::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size);
  const auto channels = static_cast<double>(output_channels);
  // Four attention matrices and two of the MLP per block; the last term is the neck's 3×3
  // convolution.
  const double parameters_per_block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(mlp_dim));
  const auto values_per_patch = static_cast<double>(3 * patch_size * patch_size);
  const auto num_positions =
      uses_absolute_positions ? static_cast<double>(patches_per_side() * patches_per_side()) : 0.0;
  return static_cast<double>(num_layers) * parameters_per_block +
         hidden * (values_per_patch + num_positions + channels) + 9.0 * channels * channels;
}

int64_t SamVitConfig::get_window_size(int64_t block) const {
  return std::ranges::find(global_attention_blocks, block) == global_attention_blocks.end() ? window_size : 0;
}

SamVitAttention::SamVitAttention(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t side)
    : num_heads_(config.num_heads),
      patches_per_side_(side),
      qkv_(scope / "qkv", config.hidden_size, 3 * config.hidden_size, config.qkv_bias),
      proj_(scope / "proj", config.hidden_size, config.hidden_size, true, compute_residual_gain(config.num_layers)),
      rel_pos_h_(make_relative_position_table(scope, "rel_pos_h", config, side)),
      rel_pos_w_(make_relative_position_table(scope, "rel_pos_w", config, side)) {}

/// Computes the bias of the attention scores: query [windows, side², heads, head_dim] → [windows,
/// heads, side² (queries), side² (keys)].
at::Tensor SamVitAttention::compute_relative_position_bias(const at::Tensor& query) const {
  const int64_t num_windows = query.size(0);
  const at::Tensor queries_by_row =
      query.view({num_windows, patches_per_side_, patches_per_side_, num_heads_, -1}).permute({1, 0, 3, 2, 4});
  const at::Tensor queries_by_column = queries_by_row.transpose(0, 3);
  // [side, windows, heads, side, head_dim] → [side, windows, heads, side, side]; the last dimension
  // belongs to the keys.
  const auto multiply_by_relative_positions = [this](const at::Tensor& queries, const at::Tensor& table) {
    return at::bmm(queries.flatten(1, 3), gather_relative_positions(table, patches_per_side_))
        .view({patches_per_side_, -1, num_heads_, patches_per_side_, patches_per_side_});
  };
  const at::Tensor row_bias =
      multiply_by_relative_positions(queries_by_row, rel_pos_h_).permute({1, 2, 0, 3, 4}).contiguous();
  const at::Tensor column_bias =
      multiply_by_relative_positions(queries_by_column, rel_pos_w_).permute({1, 2, 3, 0, 4}).contiguous();
  return (row_bias.unsqueeze(5) + column_bias.unsqueeze(4))
      .view({num_windows, num_heads_, patches_per_side_ * patches_per_side_, patches_per_side_ * patches_per_side_});
}

at::Tensor SamVitAttention::operator()(const at::Tensor& x) const {
  const at::Tensor rows =
      qkv_(x).view({-1, patches_per_side_ * patches_per_side_, 3, num_heads_, x.size(1) / num_heads_});
  const at::Tensor query = rows.select(2, 0), key = rows.select(2, 1), value = rows.select(2, 2);
  const at::Tensor attention_output =
      rel_pos_h_.defined() ? nn::biased_attention(query, key, value, compute_relative_position_bias(query))
                           : nn::batched_attention(query, key, value);
  return attention_output.reshape(x.sizes());
}

SamVitBlock::SamVitBlock(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t window)
    : patches_per_side_(config.patches_per_side()),
      window_size_(window),
      windows_per_side_(window == 0 ? 1 : (patches_per_side_ + window - 1) / window),
      activation_(config.activation),
      norm1_(scope / "layer_norm1", config.hidden_size, config.layer_norm_eps),
      attention_(scope / "attn", config, window == 0 ? patches_per_side_ : window),
      norm2_(scope / "layer_norm2", config.hidden_size, config.layer_norm_eps),
      lin1_(scope / "mlp" / "lin1", config.hidden_size, config.mlp_dim, true),
      lin2_(scope / "mlp" / "lin2", config.mlp_dim, config.hidden_size, true,
            compute_residual_gain(config.num_layers)) {}

/// Splits images into windows: [images · side², hidden] → [images · windows² · window², hidden].
/// The zero padding outside the image is not masked, as in SAM's training.
at::Tensor SamVitBlock::window_partition(const at::Tensor& x) const {
  const int64_t padding = windows_per_side_ * window_size_ - patches_per_side_;
  const at::Tensor images = at::constant_pad_nd(x.view({-1, patches_per_side_, patches_per_side_, x.size(1)}),
                                                {0, 0, 0, padding, 0, padding});
  return images.view({-1, windows_per_side_, window_size_, windows_per_side_, window_size_, x.size(1)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, x.size(1)});
}

/// Inverts window_partition() and removes the padding.
at::Tensor SamVitBlock::window_unpartition(const at::Tensor& x) const {
  return x.view({-1, windows_per_side_, windows_per_side_, window_size_, window_size_, x.size(1)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, windows_per_side_ * window_size_, windows_per_side_ * window_size_, x.size(1)})
      .narrow(1, 0, patches_per_side_)
      .narrow(2, 0, patches_per_side_)
      .reshape({-1, x.size(1)});
}

at::Tensor SamVitBlock::operator()(const at::Tensor& x) const {
  const at::Tensor normed = norm1_(x);
  const at::Tensor attention_output =
      window_size_ == 0 ? attention_(normed) : window_unpartition(attention_(window_partition(normed)));
  const at::Tensor hidden_states = x + attention_.apply_output_projection(attention_output);
  return hidden_states + lin2_(activate(activation_, lin1_(norm2_(hidden_states))));
}

SamVit::SamVit(const ParameterScope& scope, const SamVitConfig& config)
    : config_(config),
      patch_weight_((scope / "patch_embed" / "projection")
                        .add_parameter("weight", {config.hidden_size, 3, config.patch_size, config.patch_size},
                                       InitialValues::kaiming(3 * config.patch_size * config.patch_size))),
      patch_bias_(
          (scope / "patch_embed" / "projection").add_parameter("bias", {config.hidden_size}, InitialValues::zeros())),
      pos_embed_(config.uses_absolute_positions
                     ? scope.add_parameter(
                           "pos_embed", {1, config.patches_per_side(), config.patches_per_side(), config.hidden_size},
                           {.mean = 0, .deviation = kSamPositionEmbeddingStd})
                     : at::Tensor()),
      blocks_(make_sam_vit_blocks(scope / "layers", config)),
      neck_weight_((scope / "neck" / "conv1")
                       .add_parameter("weight", {config.output_channels, config.hidden_size, 1, 1},
                                      InitialValues::kaiming(config.hidden_size))),
      neck_norm1_(scope / "neck" / "layer_norm1", config.output_channels, kSamNeckNormEpsilon),
      neck_convolution_(
          scope / "neck" / "conv2",
          {.in_channels = config.output_channels, .out_channels = config.output_channels, .kernel_size = 3},
          /*bias=*/false),
      neck_norm2_(scope / "neck" / "layer_norm2", config.output_channels, kSamNeckNormEpsilon) {}

at::Tensor SamVit::embed(const at::Tensor& pixels) const {
  const int64_t images = pixels.size(0), side = config_.patches_per_side(), patch = config_.patch_size;
  const at::Tensor patches = pixels.view({images, 3, side, patch, side, patch})
                                 .permute({0, 2, 4, 1, 3, 5})
                                 .reshape({images * side * side, 3 * patch * patch});
  at::Tensor embeddings = nn::linear(patches, patch_weight_.flatten(1), patch_bias_);
  if (!pos_embed_.defined()) return embeddings;
  return (embeddings.view({images, side, side, -1}) + pos_embed_).flatten(0, 2);
}

at::Tensor SamVit::apply_neck(const at::Tensor& x) const {
  const int64_t side = config_.patches_per_side(), channels = config_.output_channels;
  const at::Tensor projected = neck_norm1_(nn::linear(x, neck_weight_.flatten(1), {}));
  const at::Tensor convolved = neck_convolution_(projected.view({-1, side, side, channels}).permute({0, 3, 1, 2}));
  return neck_norm2_(convolved.permute({0, 2, 3, 1}).reshape({-1, channels}));
}

at::Tensor SamVit::operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.size(2) == config_.image_size && pixels.size(3) == config_.image_size,
                 "images of {}×{} for an encoder of {}", pixels.size(2), pixels.size(3), config_.image_size);
  return apply_neck(blocks_.run(embed(pixels), recomputed_blocks));
}

}  // namespace vlmtrain::models
