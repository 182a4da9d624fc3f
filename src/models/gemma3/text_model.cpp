#include "models/gemma3/text_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_copy.h>

#include <cmath>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/activation.h"

namespace vlmtrain::models::gemma3 {

namespace {

constexpr auto kGain = nn::NormGain::kOnePlusWeight;

/// √hidden, rounded to the weights' type as transformers rounds it, which holds it as fp32.
double embedding_factor(int64_t hidden, at::ScalarType dtype) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  if (dtype == at::kBFloat16) return static_cast<c10::BFloat16>(root);
  if (dtype == at::kHalf) return static_cast<c10::Half>(root);
  return root;
}

/// Attention divides scores by √head_dim, Gemma by √query_pre_attn_scalar. Queries and keys, both multiplied by this
/// where they are rotated in fp32, make up for it.
double rotary_scale(const TextConfig& config) {
  return std::pow(static_cast<double>(config.head_dim) / config.query_pre_attn_scalar, 0.25);
}

}  // namespace

Block::Block(const nn::ParameterScope& scope, const TextConfig& config)
    : heads_{.query = config.heads, .key_value = config.key_value_heads, .features = config.head_dim},
      query_key_value_(
          scope / "self_attn", {"q_proj", "k_proj", "v_proj"}, config.hidden_size,
          {heads_.query * heads_.features, heads_.key_value * heads_.features, heads_.key_value * heads_.features},
          /*bias=*/false),
      out_(scope / "self_attn" / "o_proj", config.heads * config.head_dim, config.hidden_size, /*bias=*/false),
      head_norms_(scope / "self_attn", config.head_dim, config.rms_norm_eps, kGain),
      gate_up_(scope / "mlp", {"gate_proj", "up_proj"}, config.hidden_size,
               {config.intermediate_size, config.intermediate_size}, /*bias=*/false),
      down_(scope / "mlp" / "down_proj", config.intermediate_size, config.hidden_size, /*bias=*/false),
      before_attention_(scope / "input_layernorm", config.hidden_size, config.rms_norm_eps, kGain),
      after_attention_(scope / "post_attention_layernorm", config.hidden_size, config.rms_norm_eps, kGain),
      before_mlp_(scope / "pre_feedforward_layernorm", config.hidden_size, config.rms_norm_eps, kGain),
      after_mlp_(scope / "post_feedforward_layernorm", config.hidden_size, config.rms_norm_eps, kGain) {}

at::Tensor Block::attend(const at::Tensor& query_key_value, const BlockContext& context) const {
  const auto [query, key, value] = head_norms_.rotated_heads(query_key_value, heads_, context.kind->rotary);
  nn::KeyValueCache* const cache = context.cache;
  if (cache != nullptr) cache->write(context.block, key, value);
  // Answers are words, which see what is before them.
  const bool reads_cache = cache != nullptr && !cache->is_prompt();
  return (reads_cache ? cache->read(context.block, query, context.kind->window)
                      : context.kind->attention(query, key, value))
      .flatten(1);
}

at::Tensor Block::operator()(const at::Tensor& x, const BlockContext& context) const {
  nn::Branch branch = query_key_value_.branch(before_attention_.before_linears(x));
  const at::Tensor attended =
      after_attention_.before_linears(out_(attend(branch.take_value(), context))).added_to(branch.stream);
  const nn::Branch mlp = gate_up_.branch(before_mlp_.before_linears(attended));
  return after_mlp_.before_linears(down_(nn::gelu_gated(mlp.value))).added_to(mlp.stream);
}

TextModel::TextModel(const nn::ParameterScope& scope, const TextConfig& config, int64_t image_tokens, bool is_tied,
                     const nn::ParameterScope& output)
    : config_(config),
      image_tokens_(image_tokens),
      embedding_((scope / "embed_tokens")
                     .embedding("weight", {config.vocab_size, config.hidden_size},
                                nn::InitialValues::for_fan_in(config.hidden_size))),
      full_frequencies_(config.full_rope.frequencies(config.head_dim).to(embedding_.device())),
      sliding_frequencies_(config.sliding_rope.frequencies(config.head_dim).to(embedding_.device())),
      blocks_(scope / "layers", config.layers(), config, memory::Component::kLanguage),
      norm_(scope / "norm", config.hidden_size, config.rms_norm_eps, kGain),
      output_weight_(is_tied ? embedding_
                             : output.parameter("weight", {config.vocab_size, config.hidden_size},
                                                nn::InitialValues::for_fan_in(config.hidden_size))) {}

at::Tensor TextModel::embed(const data::MicroBatch& batch, const at::Tensor& image_features) const {
  at::Tensor embedded =
      at::embedding(embedding_, batch.token_ids).mul_(embedding_factor(config_.hidden_size, embedding_.scalar_type()));
  if (!image_features.defined()) return embedded;
  VLMTRAIN_CHECK(image_features.size(0) == batch.image_positions.numel(), "{} image features for {} image tokens",
                 image_features.size(0), batch.image_positions.numel());
  return embedded.index_copy(0, batch.image_positions, image_features);
}

std::shared_ptr<const KindContext> TextModel::context_of(BlockKind kind, const data::MicroBatch& batch) const {
  const bool slides = kind == BlockKind::kSliding;
  const auto window = slides ? std::optional(config_.sliding_window) : std::nullopt;
  nn::TwoWaySpans images;
  if (batch.image_positions.numel() > 0) images = {.rows = batch.image_positions, .length = image_tokens_};
  return std::make_shared<KindContext>(
      KindContext{.attention = nn::SpanAttention(batch.segments, window, images, embedding_.options()),
                  .window = window,
                  .rotary = nn::RotaryTable::of(batch.position_ids, slides ? sliding_frequencies_ : full_frequencies_,
                                                rotary_scale(config_))});
}

ModelOutput TextModel::operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                  const OutputRequest& request, const TowerRecompute& recomputed_blocks,
                                  nn::KeyValueCache* cache) const {
  const at::Tensor embedded = embed(batch, image_features.features);
  if (cache != nullptr) cache->append(batch.segments, /*window=*/std::nullopt);
  const auto full = context_of(BlockKind::kFull, batch), sliding = context_of(BlockKind::kSliding, batch);
  BlockOutputs outputs =
      blocks_.run_each(embedded, recomputed_blocks,
                       [&](int64_t block) {
                         const bool slides = config_.blocks[static_cast<size_t>(block)] == BlockKind::kSliding;
                         return BlockContext{.kind = slides ? sliding : full, .cache = cache, .block = block};
                       },
                       {.wanted = request.text_blocks});
  return {.hidden = norm_(outputs.last.index_select(0, request.positions)), .text_blocks = std::move(outputs.wanted)};
}

}  // namespace vlmtrain::models::gemma3
