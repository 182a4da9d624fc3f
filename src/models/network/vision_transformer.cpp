#include "models/network/vision_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>

#include "models/checkpoints/config_checks.h"
#include "models/network/layers.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::models {

namespace {

using nn::Component;
using nn::InitialValues;
using nn::ParameterScope;

/// Standard deviation of random position embeddings. It must not be small compared to embedded
/// patches, which have variance 1: with the usual 0.02, a small tower learns locations late.
constexpr double kPositionEmbeddingStd = 0.5;

/// Returns the position table entry of each patch of a full tile. Idefics3 assigns buckets to
/// fractional coordinates in fp32. The same arithmetic is necessary, because rounding can move a
/// patch into a neighboring bucket.
at::Tensor make_bucketed_position_ids(int64_t side) {
  const auto fp32_options = at::TensorOptions(at::kFloat);
  const double step = 1.0 / static_cast<double>(side);
  const at::Tensor boundaries = at::arange(step, 1.0, step, fp32_options);
  const at::Tensor coordinates = (at::arange(side, fp32_options) * static_cast<float>(step)).clamp_max(1.0 - 1e-6);
  const at::Tensor axis_buckets = at::bucketize(coordinates, boundaries, /*out_int32=*/false, /*right=*/true);
  return (axis_buckets.unsqueeze(1) * side + axis_buckets.unsqueeze(0)).flatten();
}

/// Adds the parameters of transformers' SiglipMultiheadAttentionPoolingHead, with its names.
void add_pooling_head_parameters(const ParameterScope& scope, const VisionTransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  const auto matrix = InitialValues::kaiming(hidden);
  scope.add_parameter("probe", {1, 1, hidden}, {.mean = 0, .deviation = 1});
  (scope / "attention").add_parameter("in_proj_weight", {3 * hidden, hidden}, matrix);
  (scope / "attention").add_parameter("in_proj_bias", {3 * hidden}, InitialValues::zeros());
  // The ParameterStore keeps the parameters; the modules are discarded.
  const nn::Linear out_proj(scope / "attention" / "out_proj", hidden, hidden, true);
  const nn::LayerNorm norm(scope / "layernorm", hidden, config.layer_norm_eps);
  const nn::Linear fc1(scope / "mlp" / "fc1", hidden, config.intermediate_size, true);
  const nn::Linear fc2(scope / "mlp" / "fc2", config.intermediate_size, hidden, true);
}

nn::MergedLinear make_qkv_proj(const ParameterScope& scope, const VisionTransformerConfig& config) {
  const int64_t hidden = config.hidden_size;
  if (config.has_fused_qkv) {
    return {{scope / config.names.qkv}, hidden, {3 * hidden}, config.qkv_bias};
  }
  return {scope, {"q_proj", "k_proj", "v_proj"}, hidden, {hidden, hidden, hidden}, config.qkv_bias};
}

std::vector<int64_t> get_position_embedding_shape(const VisionTransformerConfig& config) {
  if (config.has_batched_position_embedding) return {1, config.num_positions(), config.hidden_size};
  return {config.num_positions(), config.hidden_size};
}

}  // namespace

VisionTransformerConfig VisionTransformerConfig::from_json(const nlohmann::json& json,
                                                           const VisionTransformerConfig& defaults,
                                                           const std::string& source) {
  reject_attention_dropout(json, source);
  VisionTransformerConfig config = defaults;
  config.hidden_size = read_size(json, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.intermediate_size = read_size(json, "intermediate_size", config.intermediate_size, kMaxLayerWidth, source);
  config.num_layers = read_size(json, "num_hidden_layers", config.num_layers, kMaxBlocks, source);
  config.num_heads = read_size(json, "num_attention_heads", config.num_heads, kMaxLayerWidth, source);
  config.image_size = read_size(json, "image_size", config.image_size, kMaxImageSide, source);
  config.patch_size = read_size(json, "patch_size", config.patch_size, kMaxImageSide, source);
  config.layer_norm_eps = read_number(json, "layer_norm_eps", config.layer_norm_eps, kNormEpsRange, source);
  const auto activation = io::get_or<std::string>(json, "hidden_act", "", source);
  if (!activation.empty()) config.activation = parse_activation(activation, "hidden_act", source);
  if (io::get_or<int64_t>(json, "num_channels", 3, source) != 3) {
    throw config_error("{}: num_channels must be 3", source);
  }
  if (config.hidden_size % config.num_heads != 0) {
    throw config_error("{}: hidden_size {} is not a multiple of num_attention_heads {}", source, config.hidden_size,
                       config.num_heads);
  }
  if (config.image_size < config.patch_size) {
    throw config_error("{}: image_size {} is smaller than patch_size {}", source, config.image_size, config.patch_size);
  }
  return config;
}

double VisionTransformerConfig::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size);
  const double parameters_per_block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(intermediate_size));
  // Four attention matrices and two of the MLP per block; biases and norms are ignored.
  const double values_per_patch = 3.0 * static_cast<double>(patch_size) * static_cast<double>(patch_size);
  return static_cast<double>(num_layers) * parameters_per_block +
         hidden * (values_per_patch + static_cast<double>(num_positions()));
}

VisionBlock::VisionBlock(const ParameterScope& scope, const VisionTransformerConfig& config)
    : num_heads_(config.num_heads),
      activation_(config.activation),
      norm1_(scope / config.names.norm1, config.hidden_size, config.layer_norm_eps),
      norm2_(scope / config.names.norm2, config.hidden_size, config.layer_norm_eps),
      qkv_(make_qkv_proj(scope / config.names.attention, config)),
      out_proj_(scope / config.names.attention / "out_proj", config.hidden_size, config.hidden_size, true,
                compute_residual_gain(config.num_layers)),
      fc1_(scope / config.names.fc1, config.hidden_size, config.intermediate_size, true, /*initial_gain=*/1,
           nn::OutputColumns::kAligned),
      fc2_(scope / config.names.fc2, config.intermediate_size, config.hidden_size, true,
           compute_residual_gain(config.num_layers)) {}

at::Tensor VisionBlock::attend(const at::Tensor& qkv, const nn::Segments& tiles) const {
  const auto heads = qkv.view({qkv.size(0), 3, num_heads_, -1}).unbind(1);
  return nn::attention(heads[0], heads[1], heads[2], tiles, /*is_causal=*/false).flatten(1);
}

at::Tensor VisionBlock::operator()(const at::Tensor& x, const nn::Segments& tiles) const {
  nn::ResidualBranch branch = qkv_.forward_branch(norm1_.make_linear_input(x));
  const at::Tensor hidden_states = out_proj_(attend(branch.take_value(), tiles), /*residual=*/branch.stream);
  const nn::ResidualBranch mlp_branch = fc1_.forward_branch(norm2_.make_linear_input(hidden_states));
  return fc2_(nn::apply_activation(activation_, mlp_branch.value), /*residual=*/mlp_branch.stream);
}

VisionTransformer::VisionTransformer(const ParameterScope& scope, const VisionTransformerConfig& config)
    : config_(config),
      class_embedding_(config.has_class_token ? (scope / "embeddings")
                                                    .add_parameter("class_embedding", {config.hidden_size},
                                                                   {.mean = 0, .deviation = kPositionEmbeddingStd})
                                              : at::Tensor()),
      patch_weight_((scope / config.names.patch_embedding)
                        .add_parameter("weight", {config.hidden_size, 3, config.patch_size, config.patch_size},
                                       InitialValues::kaiming(3 * config.patch_size * config.patch_size))),
      patch_bias_(config.has_patch_bias ? (scope / config.names.patch_embedding)
                                              .add_parameter("bias", {config.hidden_size}, InitialValues::zeros())
                                        : at::Tensor()),
      position_embedding_(scope.add_embedding(config.names.position_embedding, get_position_embedding_shape(config),
                                              {.mean = 0, .deviation = kPositionEmbeddingStd})),
      position_ids_(config.positions == PatchPositionOrder::kBucketed
                        ? make_bucketed_position_ids(config.patches_per_side()).to(patch_weight_.device())
                        : at::Tensor()),
      pre_layernorm_(config.has_pre_layernorm
                         ? std::optional<nn::LayerNorm>(std::in_place, scope / "pre_layrnorm",  // CLIP's spelling
                                                        config.hidden_size, config.layer_norm_eps)
                         : std::nullopt),
      blocks_(scope / config.names.blocks, config.num_feature_blocks.value_or(config.num_layers), config,
              memory::Component::kVision),
      post_layernorm_(
          (config.num_feature_blocks ? scope.with_component(Component::kUnused) : scope) / config.names.post_layernorm,
          config.hidden_size, config.layer_norm_eps) {
  VLMTRAIN_CHECK(config.positions == PatchPositionOrder::kSequential || !config.has_class_token,
                 "bucketed positions do not support a class token");
  const ParameterScope unused_scope = scope.with_component(Component::kUnused);
  for (int64_t i = blocks_.size(); i < config.num_layers; ++i)
    VisionBlock(unused_scope / config.names.blocks / i, config);
  if (config.has_pooling_head) add_pooling_head_parameters(unused_scope / "head", config);
}

at::Tensor VisionTransformer::embed(const image::ByteImages& pixels) const {
  const int64_t tiles = pixels.num_images();
  at::Tensor embeddings = embed_patches(pixels, patch_weight_, patch_bias_).view({tiles, config_.num_patches(), -1});
  if (config_.has_class_token) embeddings = at::cat({class_embedding_.expand({tiles, 1, -1}), embeddings}, 1);
  const at::Tensor positions =
      position_ids_.defined() ? position_embedding_.index_select(0, position_ids_) : position_embedding_;
  return (embeddings + positions).flatten(0, 1);
}

at::Tensor VisionTransformer::operator()(const image::ByteImages& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.bytes.size(2) == config_.image_size && pixels.bytes.size(3) == config_.image_size,
                 "tiles of {}×{} for a tower of {}", pixels.bytes.size(2), pixels.bytes.size(3), config_.image_size);
  const auto tiles = nn::Segments::uniform(pixels.num_images(), config_.num_positions(), pixels.bytes.device());
  at::Tensor embeddings = embed(pixels);
  if (pre_layernorm_) embeddings = (*pre_layernorm_)(embeddings);
  const at::Tensor features = blocks_.run(embeddings, recomputed_blocks, tiles).last_hidden_state;
  return config_.num_feature_blocks ? features : post_layernorm_(features);
}

VisionTransformerConfig read_clip_config(const nlohmann::json& json, const std::string& source) {
  VisionTransformerConfig defaults;
  defaults.patch_size = 32;
  defaults.layer_norm_eps = 1e-5;
  defaults.activation = Activation::kQuickGelu;
  defaults.has_class_token = true;
  defaults.has_patch_bias = false;
  defaults.has_pre_layernorm = true;
  return VisionTransformerConfig::from_json(json, defaults, source);
}

VisionTransformerConfig read_siglip_config(const nlohmann::json& json, const std::string& source) {
  auto config = VisionTransformerConfig::from_json(json, {}, source);
  config.has_pooling_head = io::get_or<bool>(json, "vision_use_head", true, source);
  return config;
}

VisionTransformerConfig read_idefics3_vision_config(const nlohmann::json& json, const std::string& source) {
  VisionTransformerConfig defaults;
  defaults.hidden_size = 1152;
  defaults.num_heads = 16;
  defaults.patch_size = 32;
  defaults.positions = PatchPositionOrder::kBucketed;
  return VisionTransformerConfig::from_json(json, defaults, source);
}

}  // namespace vlmtrain::models
