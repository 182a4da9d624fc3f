#include "models/gemma3/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_copy.h>

#include <cmath>
#include <utility>

#include "models/family.h"
#include "models/gemma3/processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/nn/layers/activation.h"
#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::models::gemma3 {

using nn::Component;
using nn::ParameterScope;

namespace {

constexpr auto kNormGain = nn::NormGain::kOnePlusWeight;

/// Returns √hidden, the factor of Gemma's token embeddings, rounded to their dtype as in
/// transformers.
double compute_embedding_scale(int64_t hidden, at::ScalarType dtype) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  if (dtype == at::kBFloat16) return static_cast<c10::BFloat16>(root);
  if (dtype == at::kHalf) return static_cast<c10::Half>(root);
  return root;
}

/// Returns the factor of the rotary table, (head_dim / query_pre_attn_scalar)^¼. nn::SpanAttention
/// divides scores by √head_dim, but Gemma by √query_pre_attn_scalar. Queries and keys are both
/// multiplied by the table, so the factor of the scores is the square of this one. The table is in
/// fp32, so the correction loses no precision.
double compute_rotary_scale(const TextConfig& config) {
  return std::pow(static_cast<double>(config.head_dim) / config.query_pre_attn_scalar, 0.25);
}

}  // namespace

Block::Block(const nn::ParameterScope& scope, const TextConfig& config)
    : head_shape_{.num_heads = config.num_heads,
                  .num_key_value_heads = config.num_key_value_heads,
                  .head_dim = config.head_dim},
      qkv_(scope / "self_attn", {"q_proj", "k_proj", "v_proj"}, config.hidden_size,
           {head_shape_.num_heads * head_shape_.head_dim, head_shape_.num_key_value_heads * head_shape_.head_dim,
            head_shape_.num_key_value_heads * head_shape_.head_dim},
           /*bias=*/false),
      out_proj_(scope / "self_attn" / "o_proj", config.num_heads * config.head_dim, config.hidden_size, /*bias=*/false),
      qk_norm_(scope / "self_attn", config.head_dim, config.rms_norm_eps, kNormGain),
      gate_up_proj_(scope / "mlp", {"gate_proj", "up_proj"}, config.hidden_size,
                    {config.intermediate_size, config.intermediate_size}, /*bias=*/false),
      down_proj_(scope / "mlp" / "down_proj", config.intermediate_size, config.hidden_size, /*bias=*/false),
      before_attention_(scope / "input_layernorm", config.hidden_size, config.rms_norm_eps, kNormGain),
      after_attention_(scope / "post_attention_layernorm", config.hidden_size, config.rms_norm_eps, kNormGain),
      before_mlp_(scope / "pre_feedforward_layernorm", config.hidden_size, config.rms_norm_eps, kNormGain),
      after_mlp_(scope / "post_feedforward_layernorm", config.hidden_size, config.rms_norm_eps, kNormGain) {}

at::Tensor Block::attend(const at::Tensor& qkv, const BlockContext& context) const {
  const auto [query, key, value] =
      qk_norm_.split_and_rotate_heads(qkv, head_shape_, context.layer_type_context->rotary_table);
  nn::GenerationCache* const cache = context.cache;
  if (cache != nullptr) cache->write(context.block, key, value);
  // Generated tokens are text, which attends causally, so the cache needs no image spans.
  const bool reads_cache = cache != nullptr && !cache->is_prefill();
  return (reads_cache ? cache->attend(context.block, query, context.layer_type_context->window)
                      : context.layer_type_context->attention(query, key, value))
      .flatten(1);
}

at::Tensor Block::operator()(const at::Tensor& x, const BlockContext& context) const {
  nn::ResidualBranch attention_branch = qkv_.forward_branch(before_attention_.make_linear_input(x));
  const at::Tensor attention_output =
      after_attention_.make_linear_input(out_proj_(attend(attention_branch.take_value(), context)))
          .add_residual(attention_branch.stream);
  const nn::ResidualBranch mlp_branch = gate_up_proj_.forward_branch(before_mlp_.make_linear_input(attention_output));
  return after_mlp_.make_linear_input(down_proj_(nn::geglu(mlp_branch.value))).add_residual(mlp_branch.stream);
}

TextModel::TextModel(const nn::ParameterScope& scope, const TextConfig& config, int64_t tokens_per_image, bool is_tied,
                     const nn::ParameterScope& output)
    : config_(config),
      tokens_per_image_(tokens_per_image),
      embedding_((scope / "embed_tokens")
                     .add_embedding("weight", {config.vocab_size, config.hidden_size},
                                    nn::InitialValues::kaiming(config.hidden_size))),
      full_frequencies_(config.full_rope.compute_frequencies(config.head_dim).to(embedding_.device())),
      sliding_frequencies_(config.sliding_rope.compute_frequencies(config.head_dim).to(embedding_.device())),
      blocks_(scope / "layers", config.num_layers(), config, memory::Component::kLanguage),
      norm_(scope / "norm", config.hidden_size, config.rms_norm_eps, kNormGain),
      output_weight_(is_tied ? embedding_
                             : output.add_parameter("weight", {config.vocab_size, config.hidden_size},
                                                    nn::InitialValues::kaiming(config.hidden_size))) {}

at::Tensor TextModel::embed(const data::MicroBatch& batch, const at::Tensor& image_features) const {
  at::Tensor embeddings = at::embedding(embedding_, batch.token_ids)
                              .mul_(compute_embedding_scale(config_.hidden_size, embedding_.scalar_type()));
  if (!image_features.defined()) return embeddings;
  VLMTRAIN_CHECK(image_features.size(0) == batch.image_token_positions.numel(), "{} image features for {} image tokens",
                 image_features.size(0), batch.image_token_positions.numel());
  return embeddings.index_copy(0, batch.image_token_positions, image_features);
}

std::shared_ptr<const LayerTypeContext> TextModel::make_layer_type_context(LayerType layer_type,
                                                                           const data::MicroBatch& batch) const {
  const bool is_sliding = layer_type == LayerType::kSliding;
  const auto window = is_sliding ? std::optional(config_.sliding_window) : std::nullopt;
  nn::BidirectionalSpans images;
  if (const int64_t image_tokens = batch.image_token_positions.numel(); image_tokens > 0) {
    images.rows = batch.image_token_positions;
    images.lengths.assign(static_cast<size_t>(image_tokens / tokens_per_image_), tokens_per_image_);
  }
  return std::make_shared<LayerTypeContext>(LayerTypeContext{
      .attention = nn::SpanAttention(batch.segments, window, images, config_.head_dim, embedding_.options()),
      .window = window,
      .rotary_table = nn::RotaryTable::from_positions(
          batch.position_ids, is_sliding ? sliding_frequencies_ : full_frequencies_, compute_rotary_scale(config_))});
}

ModelOutput TextModel::operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                  const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                                  nn::GenerationCache* cache) const {
  const at::Tensor embeddings = embed(batch, image_features.features);
  if (cache != nullptr) cache->begin_forward(batch.segments, /*window=*/std::nullopt);
  const auto full_attention_context = make_layer_type_context(LayerType::kFull, batch),
             sliding_attention_context = make_layer_type_context(LayerType::kSliding, batch);
  BlockListOutputs outputs = blocks_.run_with_contexts(
      embeddings, recomputed_blocks,
      [&](int64_t block) {
        const bool is_sliding = config_.layer_types[static_cast<size_t>(block)] == LayerType::kSliding;
        return BlockContext{.layer_type_context = is_sliding ? sliding_attention_context : full_attention_context,
                            .cache = cache,
                            .block = block};
      },
      {.output_block_indices = request.text_block_indices});
  return {.hidden_states = norm_(outputs.last_hidden_state.index_select(0, request.positions)),
          .text_block_outputs = std::move(outputs.intermediate_hidden_states)};
}

Projector::Projector(const ParameterScope& scope, const Config& config)
    : tokens_per_side_(config.tokens_per_side),
      patches_per_token_(config.vision.patches_per_side() / config.tokens_per_side),
      norm_(scope / "mm_soft_emb_norm", config.vision.hidden_size, config.vision.layer_norm_eps,
            nn::NormGain::kOnePlusWeight),
      weight_(scope.add_parameter("mm_input_projection_weight", {config.vision.hidden_size, config.text.hidden_size},
                                  nn::InitialValues::kaiming(config.vision.hidden_size))) {}

at::Tensor Projector::operator()(const at::Tensor& patches) const {
  // [images, token row, y, token column, x, features]: averages the y and x of each token.
  const at::Tensor pooled_patches =
      patches.view({-1, tokens_per_side_, patches_per_token_, tokens_per_side_, patches_per_token_, patches.size(1)})
          .mean({2, 4})
          .view({-1, patches.size(1)});
  return nn::linear(norm_(pooled_patches), weight_.t(), /*bias=*/{});
}

Model::Model(Config config, StateDictKeyMap key_map, image::Normalization normalization, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      key_map_(std::move(key_map)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_tower"), config_.vision),
      projector_(ParameterScope(parameters(), Component::kProjector, "model.multi_modal_projector"), config_),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            config_.tokens_per_image(), config_.tie_word_embeddings,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute_block_counts().vision);
  return {.features = projector_(patches), .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, (folder / "config.json").string());
  const auto key_map =
      llava::make_key_map(llava::CheckpointFormat::kHuggingFace, io::read_checkpoint_tensor_names(folder));
  return std::make_unique<Model>(config, key_map, ImageProcessorSettings::read(config, folder).normalization, settings);
}

}  // namespace vlmtrain::models::gemma3
