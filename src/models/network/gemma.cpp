#include "models/network/gemma.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_copy.h>

#include <cmath>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models {

namespace {

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
double compute_rotary_scale(int64_t head_dim, double query_pre_attn_scalar) {
  return std::pow(static_cast<double>(head_dim) / query_pre_attn_scalar, 0.25);
}

std::vector<const char*> list_qkv_names(const nn::HeadShape& heads) {
  if (heads.has_value_projection) return {"q_proj", "k_proj", "v_proj"};
  return {"q_proj", "k_proj"};
}

std::vector<int64_t> list_qkv_features(const nn::HeadShape& heads) {
  const int64_t key_value_features = heads.num_key_value_heads * heads.head_dim;
  std::vector<int64_t> features{heads.num_heads * heads.head_dim, key_value_features};
  if (heads.has_value_projection) features.push_back(key_value_features);
  return features;
}

}  // namespace

GemmaBlock::GemmaBlock(const nn::ParameterScope& scope, const GemmaBlockConfig& config)
    : head_shape_(config.attention.heads),
      value_norm_eps_(config.model.normalizes_values ? std::optional(config.model.rms_norm_eps) : std::nullopt),
      qkv_(scope / "self_attn", list_qkv_names(head_shape_), config.model.hidden_size, list_qkv_features(head_shape_),
           /*bias=*/false),
      out_proj_(scope / "self_attn" / "o_proj", head_shape_.num_heads * head_shape_.head_dim, config.model.hidden_size,
                /*bias=*/false),
      qk_norm_(scope / "self_attn", head_shape_.head_dim, config.model.rms_norm_eps, config.model.norm_gain,
               config.attention.initial_query_gain),
      gate_up_proj_(scope / "mlp", {"gate_proj", "up_proj"}, config.model.hidden_size,
                    {config.model.intermediate_size, config.model.intermediate_size}, /*bias=*/false),
      down_proj_(scope / "mlp" / "down_proj", config.model.intermediate_size, config.model.hidden_size,
                 /*bias=*/false),
      before_attention_(scope / "input_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                        config.model.norm_gain),
      after_attention_(scope / "post_attention_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                       config.model.norm_gain),
      before_mlp_(scope / "pre_feedforward_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                  config.model.norm_gain),
      after_mlp_(scope / "post_feedforward_layernorm", config.model.hidden_size, config.model.rms_norm_eps,
                 config.model.norm_gain) {
  if (config.model.has_layer_scalar) {
    layer_scalar_ =
        scope.with_component(nn::Component::kBuffer).add_parameter("layer_scalar", {1}, nn::InitialValues::ones());
  }
}

at::Tensor GemmaBlock::attend(const at::Tensor& qkv, const GemmaBlockContext& context) const {
  auto [query, key, value] =
      qk_norm_.split_and_rotate_heads(qkv, head_shape_, context.layer_type_context->rotary_table);
  if (value_norm_eps_) value = nn::rms_norm_without_weight(value, *value_norm_eps_);
  nn::GenerationCache* const cache = context.cache;
  if (cache != nullptr) cache->write(context.block, key, value);
  // Generated tokens are text, which attends causally, so the cache needs no image spans.
  const bool reads_cache = cache != nullptr && !cache->is_prefill();
  return (reads_cache ? cache->attend(context.block, query, context.layer_type_context->window)
                      : context.layer_type_context->attention(query, key, value))
      .flatten(1);
}

at::Tensor GemmaBlock::operator()(const at::Tensor& x, const GemmaBlockContext& context) const {
  nn::ResidualBranch attention_branch = qkv_.forward_branch(before_attention_.make_linear_input(x));
  const at::Tensor attention_output =
      after_attention_.make_linear_input(out_proj_(attend(attention_branch.take_value(), context)))
          .add_residual(attention_branch.stream);
  const nn::ResidualBranch mlp_branch = gate_up_proj_.forward_branch(before_mlp_.make_linear_input(attention_output));
  const at::Tensor output =
      after_mlp_.make_linear_input(down_proj_(nn::geglu(mlp_branch.value))).add_residual(mlp_branch.stream);
  return layer_scalar_.defined() ? output * layer_scalar_ : output;
}

GemmaModel::GemmaModel(const nn::ParameterScope& scope, const GemmaConfig& config, bool is_tied,
                       const nn::ParameterScope& output)
    : config_(config),
      embedding_((scope / "embed_tokens")
                     .add_embedding("weight", {config.vocab_size, config.hidden_size},
                                    nn::InitialValues::kaiming(config.hidden_size))),
      full_frequencies_(config.full.rope.compute_frequencies(config.full.heads.head_dim).to(embedding_.device())),
      sliding_frequencies_(
          config.sliding.rope.compute_frequencies(config.sliding.heads.head_dim).to(embedding_.device())),
      blocks_(
          scope / "layers", config.num_layers(),
          [&](int64_t block) {
            return GemmaBlockConfig{config, config.get_attention(config.get_layer_type(block))};
          },
          memory::Component::kLanguage),
      norm_(scope / "norm", config.hidden_size, config.rms_norm_eps, config.norm_gain),
      output_weight_(is_tied ? embedding_
                             : output.add_parameter("weight", {config.vocab_size, config.hidden_size},
                                                    nn::InitialValues::kaiming(config.hidden_size))) {}

at::Tensor GemmaModel::embed(const data::MicroBatch& batch, const at::Tensor& image_features) const {
  at::Tensor embeddings = at::embedding(embedding_, batch.token_ids)
                              .mul_(compute_embedding_scale(config_.hidden_size, embedding_.scalar_type()));
  if (!image_features.defined()) return embeddings;
  VLMTRAIN_CHECK(image_features.size(0) == batch.image_token_positions.numel(), "{} image features for {} image tokens",
                 image_features.size(0), batch.image_token_positions.numel());
  return embeddings.index_copy(0, batch.image_token_positions, image_features);
}

std::shared_ptr<const GemmaLayerTypeContext> GemmaModel::make_layer_type_context(
    GemmaLayerType type, const data::MicroBatch& batch, const std::vector<int64_t>& tokens_per_image) const {
  const GemmaAttentionConfig& attention = config_.get_attention(type);
  nn::BidirectionalSpans images;
  if (attention.is_bidirectional_in_images && !tokens_per_image.empty()) {
    images = {.rows = batch.image_token_positions, .lengths = tokens_per_image};
  }
  const at::Tensor& frequencies = type == GemmaLayerType::kFull ? full_frequencies_ : sliding_frequencies_;
  return std::make_shared<GemmaLayerTypeContext>(GemmaLayerTypeContext{
      .attention =
          nn::SpanAttention(batch.segments, attention.window, images, attention.heads.head_dim, embedding_.options()),
      .window = attention.window,
      .rotary_table = nn::RotaryTable::from_positions(
          batch.position_ids, frequencies,
          compute_rotary_scale(attention.heads.head_dim, config_.query_pre_attn_scalar))});
}

ModelOutput GemmaModel::operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                   const std::vector<int64_t>& tokens_per_image, const OutputRequest& request,
                                   const TowerRecomputeCounts& recomputed_blocks, nn::GenerationCache* cache) const {
  const at::Tensor embeddings = embed(batch, image_features.features);
  if (cache != nullptr) cache->begin_forward(batch.segments, /*window=*/std::nullopt);
  const auto full_context = make_layer_type_context(GemmaLayerType::kFull, batch, tokens_per_image),
             sliding_context = make_layer_type_context(GemmaLayerType::kSliding, batch, tokens_per_image);
  BlockListOutputs outputs = blocks_.run_with_contexts(
      embeddings, recomputed_blocks,
      [&](int64_t block) {
        const bool is_full = config_.get_layer_type(block) == GemmaLayerType::kFull;
        return GemmaBlockContext{
            .layer_type_context = is_full ? full_context : sliding_context, .cache = cache, .block = block};
      },
      {.output_block_indices = request.text_block_indices});
  return {.hidden_states = norm_(outputs.last_hidden_state.index_select(0, request.positions)),
          .text_block_outputs = std::move(outputs.intermediate_hidden_states)};
}

}  // namespace vlmtrain::models
