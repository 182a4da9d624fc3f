#include "models/network/mask_decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>

#include <numbers>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::models {

namespace {

/// torch.nn.LayerNorm's default, which SAM uses for the final norm instead of layer_norm_eps.
constexpr double kFinalNormEpsilon = 1e-5;

/// Returns x [masks, rows, in] → [masks, rows, out].
at::Tensor apply_linear(const nn::Linear& linear, const at::Tensor& x) {
  return linear(x.flatten(0, 1)).view({x.size(0), x.size(1), -1});
}

std::vector<TwoWayBlock> make_two_way_blocks(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config) {
  std::vector<TwoWayBlock> blocks;
  for (int64_t i = 0; i < config.num_layers; ++i) blocks.emplace_back(scope / i, config, /*is_first=*/i == 0);
  return blocks;
}

ProjectedAttention make_cross_attention(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config) {
  return {scope, config.hidden_size, config.hidden_size / config.attention_downsample_rate, config.num_heads};
}

using nn::Component;
using nn::InitialValues;
using nn::ParameterScope;

constexpr double kUpscaleNormEpsilon = 1e-6;  // of SAM's LayerNorm2d, used here instead of layer_norm_eps

/// Random tokens must differ from each other, but be small compared to prompts, which have variance
/// 1. Not tuned.
constexpr InitialValues kTokenInitialValues{.mean = 0, .deviation = 0.2};
/// transformers' usual standard deviation of embeddings.
constexpr InitialValues kNoMaskInitialValues{.mean = 0, .deviation = 0.02};

/// Small random mask weights keep the initial mask probabilities near one half. Not tuned.
constexpr double kMaskWeightGain = 0.1;

ParameterScope make_decoder_scope(const ParameterScope& scope) {
  return scope.with_component(Component::kMaskDecoder) / "mask_decoder";
}

ParameterScope make_first_mask_scope(const ParameterScope& scope) {
  return make_decoder_scope(scope) / "output_hypernetworks_mlps" / 0;
}

}  // namespace

ProjectedAttention::ProjectedAttention(const nn::ParameterScope& scope, int64_t hidden, int64_t inner,
                                       int64_t num_heads)
    : num_heads_(num_heads),
      q_proj_(scope / "q_proj", hidden, inner, true),
      k_proj_(scope / "k_proj", hidden, inner, true),
      v_proj_(scope / "v_proj", hidden, inner, true),
      out_proj_(scope / "out_proj", inner, hidden, true) {}

at::Tensor ProjectedAttention::operator()(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value) const {
  const auto split_heads = [this](const nn::Linear& linear, const at::Tensor& x) {
    const at::Tensor projected = apply_linear(linear, x);
    return projected.view({x.size(0), x.size(1), num_heads_, projected.size(2) / num_heads_});
  };
  return apply_linear(out_proj_, nn::batched_attention(split_heads(q_proj_, query), split_heads(k_proj_, key),
                                                       split_heads(v_proj_, value))
                                     .flatten(2));
}

TwoWayBlock::TwoWayBlock(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config, bool is_first)
    : is_first_block_(is_first),
      activation_(config.activation),
      self_attn_(scope / "self_attn", config.hidden_size, config.hidden_size, config.num_heads),
      norm1_(scope / "layer_norm1", config.hidden_size, config.layer_norm_eps),
      cross_attn_token_to_image_(make_cross_attention(scope / "cross_attn_token_to_image", config)),
      norm2_(scope / "layer_norm2", config.hidden_size, config.layer_norm_eps),
      lin1_(scope / "mlp" / "lin1", config.hidden_size, config.mlp_dim, true),
      lin2_(scope / "mlp" / "lin2", config.mlp_dim, config.hidden_size, true),
      norm3_(scope / "layer_norm3", config.hidden_size, config.layer_norm_eps),
      norm4_(scope / "layer_norm4", config.hidden_size, config.layer_norm_eps),
      cross_attn_image_to_token_(make_cross_attention(scope / "cross_attn_image_to_token", config)) {}

TokensAndFeatures TwoWayBlock::operator()(const TokensAndFeatures& x, const at::Tensor& token_positions,
                                          const at::Tensor& feature_positions) const {
  at::Tensor tokens = x.tokens;
  if (is_first_block_) {
    tokens = norm1_(self_attn_(tokens, tokens, tokens));
  } else {
    const at::Tensor tokens_with_positions = tokens + token_positions;
    tokens = norm1_(tokens + self_attn_(tokens_with_positions, tokens_with_positions, tokens));
  }
  const at::Tensor features_with_positions = x.features + feature_positions;
  tokens = norm2_(tokens + cross_attn_token_to_image_(tokens + token_positions, features_with_positions, x.features));
  tokens = norm3_(tokens + apply_linear(lin2_, activate(activation_, apply_linear(lin1_, tokens))));
  const at::Tensor attention_output =
      cross_attn_image_to_token_(features_with_positions, tokens + token_positions, tokens);
  return {.tokens = tokens, .features = norm4_(x.features + attention_output)};
}

TwoWayTransformer::TwoWayTransformer(const nn::ParameterScope& scope, const TwoWayTransformerConfig& config)
    : blocks_(make_two_way_blocks(scope / "layers", config)),
      final_attention_(make_cross_attention(scope / "final_attn_token_to_image", config)),
      final_norm_(scope / "layer_norm_final_attn", config.hidden_size, kFinalNormEpsilon) {}

TokensAndFeatures TwoWayTransformer::operator()(const TokensAndFeatures& x, const at::Tensor& feature_positions) const {
  TokensAndFeatures tokens_and_features = x;
  for (const TwoWayBlock& block : blocks_)
    tokens_and_features = block(tokens_and_features, x.tokens, feature_positions);
  const at::Tensor attention_output =
      final_attention_(tokens_and_features.tokens + x.tokens, tokens_and_features.features + feature_positions,
                       tokens_and_features.features);
  return {.tokens = final_norm_(tokens_and_features.tokens + attention_output),
          .features = tokens_and_features.features};
}

MaskDecoderConfig MaskDecoderConfig::from_json(const nlohmann::json& json, const std::string& source) {
  MaskDecoderConfig config;
  auto& [hidden, mlp_dim, num_layers, num_heads, rate, eps, activation] = config.transformer;
  hidden = read_size(json, "hidden_size", hidden, kMaxLayerWidth, source);
  mlp_dim = read_size(json, "mlp_dim", mlp_dim, kMaxLayerWidth, source);
  num_layers = read_size(json, "num_hidden_layers", num_layers, kMaxBlocks, source);
  num_heads = read_size(json, "num_attention_heads", num_heads, kMaxLayerWidth, source);
  rate = read_size(json, "attention_downsample_rate", rate, kMaxLayerWidth, source);
  config.num_mask_tokens = read_size(json, "num_multimask_outputs", config.num_mask_tokens - 1, kMaxBlocks, source) + 1;
  eps = read_number(json, "layer_norm_eps", eps, kNormEpsRange, source);
  activation = parse_activation(io::get_or<std::string>(json, "hidden_act", "relu", source), "hidden_act", source);
  if (hidden % rate != 0 || hidden / rate % num_heads != 0) {
    throw config_error(
        "{}: hidden_size {} is not divisible by attention_downsample_rate {} times num_attention_heads {}", source,
        hidden, rate, num_heads);
  }
  // The two upscaling steps divide the channels by 4 and by 2.
  if (hidden % 8 != 0) throw config_error("{}: hidden_size {} is not a multiple of 8", source, hidden);
  return config;
}

double MaskDecoderConfig::num_parameters() const {
  const auto hidden = static_cast<double>(transformer.hidden_size);
  const double num_self_attention_parameters = 4.0 * hidden * hidden,
               num_mlp_parameters = 2.0 * hidden * static_cast<double>(transformer.mlp_dim);
  const double num_cross_attention_parameters =
      num_self_attention_parameters / static_cast<double>(transformer.attention_downsample_rate);
  const double num_block_parameters =
      static_cast<double>(transformer.num_layers) *
      (num_self_attention_parameters + 2.0 * num_cross_attention_parameters + num_mlp_parameters);
  // Upscaling and hypernetwork have 3.25 · hidden² parameters, rounded up to 4.
  return num_block_parameters + num_cross_attention_parameters + 4.0 * hidden * hidden;
}

ConvTranspose2x2::ConvTranspose2x2(const ParameterScope& scope, int64_t in_channels, int64_t out_channels)
    : weight_(scope.add_parameter("weight", {in_channels, out_channels, 2, 2}, InitialValues::kaiming(in_channels))),
      bias_(scope.add_parameter("bias", {out_channels}, InitialValues::zeros())) {}

at::Tensor ConvTranspose2x2::operator()(const at::Tensor& x) const {
  const int64_t in_channels = weight_.size(0), out_channels = weight_.size(1);
  const at::Tensor weight = weight_.permute({2, 3, 1, 0}).reshape({4 * out_channels, in_channels});
  return nn::linear(x, weight, bias_.repeat({4})).view({-1, out_channels});
}

MaskDecoder::MaskDecoder(const ParameterScope& scope, const MaskDecoderConfig& config)
    : position_frequencies_(
          (scope.with_component(Component::kBuffer) / "shared_image_embedding")
              .add_parameter("positional_embedding", {2, config.hidden_size() / 2}, {.mean = 0, .deviation = 1})),
      no_mask_embedding_((scope.with_component(Component::kMaskDecoder) / "prompt_encoder" / "no_mask_embed")
                             .add_parameter("weight", {1, config.hidden_size()}, kNoMaskInitialValues)),
      iou_token_((make_decoder_scope(scope) / "iou_token")
                     .add_parameter("weight", {1, config.hidden_size()}, kTokenInitialValues)),
      mask_tokens_((make_decoder_scope(scope) / "mask_tokens")
                       .add_parameter("weight", {config.num_mask_tokens, config.hidden_size()}, kTokenInitialValues)),
      transformer_(make_decoder_scope(scope) / "transformer", config.transformer),
      upscale1_(make_decoder_scope(scope) / "upscale_conv1", config.hidden_size(), config.hidden_size() / 4),
      upscale_norm_(make_decoder_scope(scope) / "upscale_layer_norm", config.hidden_size() / 4, kUpscaleNormEpsilon),
      upscale2_(make_decoder_scope(scope) / "upscale_conv2", config.hidden_size() / 4, config.hidden_size() / 8),
      mask_mlp_input_(make_first_mask_scope(scope) / "proj_in", config.hidden_size(), config.hidden_size(), true),
      mask_mlp_hidden_(make_first_mask_scope(scope) / "layers" / 0, config.hidden_size(), config.hidden_size(), true),
      mask_mlp_output_(make_first_mask_scope(scope) / "proj_out", config.hidden_size(), config.hidden_size() / 8, true,
                       kMaskWeightGain) {}

/// Returns sines and cosines of the features' positions (Tancik et al. 2020, arXiv 2006.10739),
/// [side², hidden], computed in fp32 as in SAM.
at::Tensor MaskDecoder::compute_position_encodings(int64_t side, const at::TensorOptions& options) const {
  const at::Tensor frequencies = position_frequencies_.to(at::kFloat);
  // Centers of the features in an image that spans -1 to 1.
  const at::Tensor feature_centers =
      at::arange(side, frequencies.options()).add_(0.5).div_(side).mul_(2).sub_(1).unsqueeze(1);
  const at::Tensor column_angles = feature_centers * frequencies[0], row_angles = feature_centers * frequencies[1];
  const at::Tensor angles =
      (row_angles.unsqueeze(1) + column_angles.unsqueeze(0)).mul_(2 * std::numbers::pi).flatten(0, 1);
  return at::cat({angles.sin(), angles.cos()}, 1).to(options);
}

/// Upscales each feature to 4 × 4 pixels: [features, hidden] → [features · 16, hidden / 8].
at::Tensor MaskDecoder::upscale(const at::Tensor& x) const {
  return at::gelu(upscale2_(at::gelu(upscale_norm_(upscale1_(x)))));
}

/// Computes the hypernetwork of the first mask token: [masks, hidden] → [masks, hidden / 8], the
/// weights of the upscaled features in the mask logits.
at::Tensor MaskDecoder::compute_mask_weights(const at::Tensor& x) const {
  const auto relu = [](const at::Tensor& y) { return activate(Activation::kRelu, y); };
  return mask_mlp_output_(relu(mask_mlp_hidden_(relu(mask_mlp_input_(x)))));
}

at::Tensor MaskDecoder::operator()(const at::Tensor& features, int64_t side, const at::Tensor& prompts,
                                   const at::Tensor& image_indices) const {
  const int64_t masks = prompts.size(0), hidden = prompts.size(1);
  VLMTRAIN_CHECK(masks > 0 && image_indices.size(0) == masks && features.size(0) % (side * side) == 0,
                 "{} prompts, {} mask images, {} features for images of {}²", masks, image_indices.size(0),
                 features.size(0), side);
  const at::Tensor output_tokens = at::cat({iou_token_, mask_tokens_}).unsqueeze(0).expand({masks, -1, -1});
  const TokensAndFeatures transformer_output = transformer_(
      {.tokens = at::cat({output_tokens, prompts.unsqueeze(1)}, 1),
       .features = (features + no_mask_embedding_).view({-1, side * side, hidden}).index_select(0, image_indices)},
      compute_position_encodings(side, features.options()));
  // Token 0 is the IoU token, token 1 the first mask token.
  const at::Tensor weights = compute_mask_weights(transformer_output.tokens.select(1, 1).contiguous());
  const at::Tensor pixels = upscale(transformer_output.features.flatten(0, 1)).view({masks, -1, weights.size(1)});
  // Upscaling splits each feature into 2 × 2 pixels twice.
  return at::bmm(pixels, weights.unsqueeze(2))
      .to(at::kFloat)
      .view({masks, side, side, 2, 2, 2, 2})
      .permute({0, 1, 3, 5, 2, 4, 6})
      .reshape({masks, 4 * side, 4 * side});
}

}  // namespace vlmtrain::models
