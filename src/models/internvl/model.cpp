#include "models/internvl/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>

#include <vector>

#include "models/family.h"
#include "models/internvl/processor.h"
#include "models/network/layers.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models::internvl {

using nn::Component;
using nn::InitialValues;
using nn::ParameterScope;

namespace {

/// As in models/network/vision_transformer: random positions must be large compared to patches of
/// variance 1. Also used for the class token.
constexpr InitialValues kPositionInitialValues{.mean = 0, .deviation = 0.5};

/// transformers uses its default eps for the norms of queries and keys, regardless of
/// layer_norm_eps.
constexpr double kQueryKeyNormEps = 1e-6;

}  // namespace

StateDictKeyMap make_key_map(std::span<const std::string> tensors) {
  static const std::vector<PrefixAliases> table{
      {"model.vision_tower.", {"vision_tower.", "model.vision_tower."}},
      {"model.multi_modal_projector.", {"multi_modal_projector.", "model.multi_modal_projector."}},
      {"model.language_model.", {"language_model.model.", "model.language_model."}},
      {"lm_head.", {"language_model.lm_head.", "lm_head."}},
  };
  return StateDictKeyMap::detect(table, tensors);
}

Norm::Norm(const ParameterScope& scope, const VisionConfig& config)
    : norm_(config.norm_type == NormType::kRmsNorm
                ? std::variant<nn::LayerNorm, nn::RmsNorm>(std::in_place_type<nn::RmsNorm>, scope, config.hidden_size,
                                                           config.norm_eps)
                : std::variant<nn::LayerNorm, nn::RmsNorm>(std::in_place_type<nn::LayerNorm>, scope, config.hidden_size,
                                                           config.norm_eps)) {}

nn::LinearInput Norm::make_linear_input(const at::Tensor& x) const {
  return std::visit([&](const auto& norm) { return norm.make_linear_input(x); }, norm_);
}

Attention::Attention(const ParameterScope& scope, const VisionConfig& config)
    : num_heads_(config.num_heads),
      qkv_(scope, {"q_proj", "k_proj", "v_proj"}, config.hidden_size,
           {config.hidden_size, config.hidden_size, config.hidden_size}, config.qkv_bias),
      out_proj_(scope / "projection_layer", config.hidden_size, config.hidden_size, true,
                compute_residual_gain(config.num_layers)) {
  if (!config.qk_norm) return;
  query_norm_.emplace(scope / "q_norm", config.hidden_size, kQueryKeyNormEps);
  key_norm_.emplace(scope / "k_norm", config.hidden_size, kQueryKeyNormEps);
}

nn::ResidualBranch Attention::operator()(const nn::LinearInput& x, const nn::Segments& tiles) const {
  const nn::ResidualBranch branch = qkv_.forward_branch(x);
  const at::Tensor& outputs = branch.value;
  const int64_t rows = outputs.size(0), hidden = outputs.size(1) / 3;
  // Queries, keys or values: columns [index · hidden, (index + 1) · hidden) → [rows, heads,
  // head_dim].
  const auto select_heads = [&](int64_t index, const std::optional<nn::RmsNorm>& norm) {
    const at::Tensor columns = outputs.narrow(1, index * hidden, hidden);
    return (norm ? (*norm)(columns.contiguous()) : columns).view({rows, num_heads_, -1});
  };
  const at::Tensor attention_output = nn::attention(select_heads(0, query_norm_), select_heads(1, key_norm_),
                                                    select_heads(2, std::nullopt), tiles, /*is_causal=*/false);
  return {out_proj_(attention_output.flatten(1)), branch.stream};
}

VisionBlock::VisionBlock(const ParameterScope& scope, const VisionConfig& config)
    : activation_(config.activation),
      attention_(scope / "attention", config),
      fc1_(scope / "mlp" / "fc1", config.hidden_size, config.intermediate_size, true, /*initial_gain=*/1,
           nn::OutputColumns::kAligned),
      fc2_(scope / "mlp" / "fc2", config.intermediate_size, config.hidden_size, true,
           compute_residual_gain(config.num_layers)),
      attention_norm_(scope / "layernorm_before", config),
      mlp_norm_(scope / "layernorm_after", config),
      attention_scale_(scope.add_parameter("lambda_1", {config.hidden_size},
                                           {.mean = config.layer_scale_init_value, .deviation = 0})),
      mlp_scale_(scope.add_parameter("lambda_2", {config.hidden_size},
                                     {.mean = config.layer_scale_init_value, .deviation = 0})) {}

at::Tensor VisionBlock::operator()(const at::Tensor& x, const nn::Segments& tiles) const {
  nn::ResidualBranch branch = attention_(attention_norm_.make_linear_input(x), tiles);
  const at::Tensor hidden_states = at::addcmul(branch.stream, branch.take_value(), attention_scale_);
  const nn::ResidualBranch mlp_branch = fc1_.forward_branch(mlp_norm_.make_linear_input(hidden_states));
  return at::addcmul(mlp_branch.stream, fc2_(nn::apply_activation(activation_, mlp_branch.value)), mlp_scale_);
}

VisionTower::VisionTower(const ParameterScope& scope, const VisionConfig& config)
    : config_(config),
      class_token_(
          (scope / "embeddings").add_parameter("cls_token", {1, 1, config.hidden_size}, kPositionInitialValues)),
      position_embeddings_((scope / "embeddings")
                               .add_embedding("position_embeddings", {1, config.num_positions(), config.hidden_size},
                                              kPositionInitialValues)),
      patch_weight_((scope / "embeddings" / "patch_embeddings" / "projection")
                        .add_parameter("weight", {config.hidden_size, 3, config.patch_size, config.patch_size},
                                       InitialValues::kaiming(3 * config.patch_size * config.patch_size))),
      patch_bias_((scope / "embeddings" / "patch_embeddings" / "projection")
                      .add_parameter("bias", {config.hidden_size}, InitialValues::zeros())),
      blocks_(scope / "encoder" / "layer", config.num_layers, config, memory::Component::kVision) {
  if (config.has_final_norm) final_norm_.emplace(scope / "layernorm", config.hidden_size, config.norm_eps);
}

at::Tensor VisionTower::embed(const image::ByteImages& pixels) const {
  const int64_t tiles = pixels.num_images();
  const at::Tensor patches = embed_patches(pixels, patch_weight_, patch_bias_);
  const at::Tensor rows =
      at::cat({class_token_.expand({tiles, 1, -1}), patches.view({tiles, config_.num_patches(), -1})}, 1);
  return (rows + position_embeddings_).flatten(0, 1);
}

at::Tensor VisionTower::operator()(const image::ByteImages& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.bytes.size(2) == config_.image_size && pixels.bytes.size(3) == config_.image_size,
                 "tiles of {}×{} for a tower of {}", pixels.bytes.size(2), pixels.bytes.size(3), config_.image_size);
  const int64_t tiles = pixels.num_images(), rows = config_.num_positions();
  const auto segments = nn::Segments::uniform(tiles, rows, pixels.bytes.device());
  const at::Tensor outputs = blocks_.run(embed(pixels), recomputed_blocks, segments).last_hidden_state;
  // Drops the class token, the first row of each tile.
  const at::Tensor patches = outputs.view({tiles, rows, -1}).narrow(1, 1, rows - 1).flatten(0, 1);
  return final_norm_ ? (*final_norm_)(patches) : patches;
}

namespace {

/// Returns the number of features after the pixel shuffle.
int64_t compute_shuffled_hidden_size(const Config& config) {
  return config.vision.hidden_size * config.scale_factor * config.scale_factor;
}

constexpr double kProjectorNormEps = 1e-5;  // torch.nn.LayerNorm's default

}  // namespace

Projector::Projector(const ParameterScope& scope, const Config& config)
    : patches_per_side_(config.vision.patches_per_side()),
      scale_factor_(config.scale_factor),
      activation_(config.projector_activation),
      norm_(scope / "layer_norm", compute_shuffled_hidden_size(config), kProjectorNormEps),
      linear_1_(scope / "linear_1", compute_shuffled_hidden_size(config), config.text.hidden_size, /*bias=*/true),
      linear_2_(scope / "linear_2", config.text.hidden_size, config.text.hidden_size, /*bias=*/true) {}

at::Tensor Projector::operator()(const at::Tensor& patches) const {
  const at::Tensor shuffled_patches = pixel_shuffle(patches, patches_per_side_, scale_factor_);
  return linear_2_(nn::apply_activation(activation_, linear_1_(norm_.make_linear_input(shuffled_patches))));
}

Model::Model(Config config, StateDictKeyMap key_map, image::Normalization normalization,
             const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      key_map_(std::move(key_map)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_tower"), config_.vision),
      projector_(ParameterScope(parameters(), Component::kProjector, "model.multi_modal_projector"), config_),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute_block_counts().vision);
  return {.features = projector_(patches), .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, make_key_map(io::read_checkpoint_tensor_names(folder)),
                                 read_image_settings(folder, config.vision).tile.normalization, settings);
}

}  // namespace vlmtrain::models::internvl
