#include "models/network/gemma/gemma.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_fill.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "vlmtrain/base/error.h"

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

/// The tensors that the blocks of one forward pass exchange.
class GemmaExchange {
 public:
  GemmaExchange(const GemmaConfig& config, std::vector<at::Tensor> per_layer_inputs)
      : config_(config), per_layer_inputs_(std::move(per_layer_inputs)) {}

  std::vector<at::Tensor> get_inputs(int64_t block) const {
    std::vector<at::Tensor> inputs;
    if (!per_layer_inputs_.empty()) inputs.push_back(per_layer_inputs_[static_cast<size_t>(block)]);
    const int64_t key_value_block = config_.get_key_value_block(block);
    if (key_value_block != block) std::ranges::copy(key_values_.at(key_value_block), std::back_inserter(inputs));
    return inputs;
  }

  void set_outputs(int64_t block, std::span<const at::Tensor> outputs) {
    if (!outputs.empty()) key_values_[block].assign(outputs.begin(), outputs.end());
  }

 private:
  const GemmaConfig& config_;
  std::vector<at::Tensor> per_layer_inputs_;               // of each block
  std::map<int64_t, std::vector<at::Tensor>> key_values_;  // by the block that computed them
};

}  // namespace

GemmaModel::GemmaModel(const nn::ParameterScope& scope, const GemmaConfig& config, bool is_tied,
                       const nn::ParameterScope& output)
    : config_(config),
      embedding_((scope / "embed_tokens")
                     .add_embedding("weight", {config.vocab_size, config.hidden_size},
                                    nn::InitialValues::kaiming(config.hidden_size))),
      per_layer_embedding_(config.per_layer.features > 0
                               ? std::optional<GemmaPerLayerEmbedding>(std::in_place, scope, config)
                               : std::nullopt),
      full_frequencies_(config.full.rope.compute_frequencies(config.full.heads.head_dim).to(embedding_.device())),
      sliding_frequencies_(
          config.sliding.rope.compute_frequencies(config.sliding.heads.head_dim).to(embedding_.device())),
      blocks_(
          scope / "layers", config.num_layers(), [&](int64_t block) { return GemmaBlockConfig(config, block); },
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

std::vector<at::Tensor> GemmaModel::embed_per_layer(const data::MicroBatch& batch, const at::Tensor& embeddings) const {
  if (!per_layer_embedding_) return {};
  const at::Tensor token_ids = batch.image_token_positions.defined()
                                   ? batch.token_ids.index_fill(0, batch.image_token_positions, config_.pad_token_id)
                                   : batch.token_ids;
  return (*per_layer_embedding_)(token_ids, embeddings);
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
  GemmaExchange exchange(config_, embed_per_layer(batch, embeddings));
  const ExchangedTensors exchanged_tensors{
      .get_inputs = [&](int64_t block) { return exchange.get_inputs(block); },
      .set_outputs = [&](int64_t block, std::span<const at::Tensor> outputs) { exchange.set_outputs(block, outputs); }};
  BlockListOutputs outputs = blocks_.run_with_contexts(
      embeddings, recomputed_blocks,
      [&](int64_t block) {
        const bool is_full = config_.get_layer_type(block) == GemmaLayerType::kFull;
        return GemmaBlockContext{.layer_type_context = is_full ? full_context : sliding_context,
                                 .cache = cache,
                                 .block = block,
                                 .key_value_block = config_.get_key_value_block(block)};
      },
      {.output_block_indices = request.text_block_indices}, &exchanged_tensors);
  return {.hidden_states = norm_(outputs.last_hidden_state.index_select(0, request.positions)),
          .text_block_outputs = std::move(outputs.intermediate_hidden_states)};
}

}  // namespace vlmtrain::models
