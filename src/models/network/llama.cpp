#include "models/network/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/network/mixers/mixers.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models {

namespace {

std::unique_ptr<const SequenceMixer> make_mixer(const nn::ParameterScope& scope, const LlamaBlockConfig& config) {
  switch (config.mixer) {
    case MixerType::kAttention:
      return std::make_unique<AttentionMixer>(scope / config.model.names.attention, config.model);
    case MixerType::kDeltaNet:
      return std::make_unique<DeltaNetMixer>(scope / "linear_attn", config.model);
  }
  throw InternalError("unknown mixer type");
}

}  // namespace

LlamaBlock::LlamaBlock(const nn::ParameterScope& scope, const LlamaBlockConfig& block_config)
    : mixer_(make_mixer(scope, block_config)),
      gate_up_proj_(scope / "mlp", {"gate_proj", "up_proj"}, block_config.model.hidden_size,
                    {block_config.model.intermediate_size, block_config.model.intermediate_size},
                    block_config.model.mlp_bias, nn::OutputColumns::kAligned),
      down_proj_(scope / "mlp" / "down_proj", block_config.model.intermediate_size, block_config.model.hidden_size,
                 block_config.model.mlp_bias, compute_residual_gain(block_config.model.num_layers)),
      input_layernorm_(scope / block_config.model.names.input_norm, block_config.model.hidden_size,
                       block_config.model.rms_norm_eps, block_config.model.norm_gain),
      post_attention_layernorm_(scope / block_config.model.names.post_attention_norm, block_config.model.hidden_size,
                                block_config.model.rms_norm_eps, block_config.model.norm_gain) {}

at::Tensor LlamaBlock::operator()(const at::Tensor& x, const MixerContext& context) const {
  const at::Tensor hidden_states = (*mixer_)(input_layernorm_.make_linear_input(x), context);
  const nn::ResidualBranch mlp_branch =
      gate_up_proj_.forward_branch(post_attention_layernorm_.make_linear_input(hidden_states));
  return down_proj_(nn::swiglu(mlp_branch.value), /*residual=*/mlp_branch.stream);
}

LlamaModel::LlamaModel(const nn::ParameterScope& scope, const LlamaConfig& config)
    : config_(config),
      embedding_((scope / config.names.embedding)
                     .add_embedding("weight", {config.vocab_size, config.hidden_size},
                                    nn::InitialValues::kaiming(config.hidden_size))),
      rotary_frequencies_(config.rope.compute_frequencies(config.head_dim).to(embedding_.device())),
      rotary_axes_(config.rope.make_pair_axes().to(embedding_.device())),
      blocks_(
          scope / config.names.blocks, config.num_layers,
          [&](int64_t block) {
            return LlamaBlockConfig{config, config.get_mixer(block)};
          },
          memory::Component::kLanguage),
      norm_(scope / "norm", config.hidden_size, config.rms_norm_eps, config.norm_gain) {}

at::Tensor LlamaModel::embed(const data::MicroBatch& batch, const at::Tensor& image_features) const {
  at::Tensor embeddings = at::embedding(embedding_, batch.token_ids);
  if (!image_features.defined()) return embeddings;
  VLMTRAIN_CHECK(image_features.size(0) == batch.image_token_positions.numel(), "{} image features for {} image tokens",
                 image_features.size(0), batch.image_token_positions.numel());
  return embeddings.index_copy(0, batch.image_token_positions, image_features);
}

nn::RotaryTable LlamaModel::make_rotary_table(const at::Tensor& position_ids) const {
  if (position_ids.dim() == 1)
    return nn::RotaryTable::from_positions(position_ids, rotary_frequencies_, config_.rope.scale);
  VLMTRAIN_CHECK(rotary_axes_.numel() > 0, "positions on several axes in a text model with one axis");
  return nn::RotaryTable::from_axes(position_ids, rotary_axes_, rotary_frequencies_, config_.rope.scale);
}

MixerContext LlamaModel::make_context(const data::MicroBatch& batch, nn::GenerationCache* cache) const {
  MixerContext context{.samples = batch.segments,
                       .rotary_table = make_rotary_table(batch.position_ids),
                       .sliding_window = config_.sliding_window,
                       .cache = cache};
  const bool needs_chunks = config_.has_delta_nets() && (cache == nullptr || cache->is_prefill());
  if (needs_chunks) {
    context.chunk_layout = std::make_shared<nn::ChunkLayout>(
        nn::ChunkLayout::make(batch.segments, config_.delta_net.num_history_rows(), embedding_.device()));
  }
  return context;
}

ModelOutput LlamaModel::operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                   const OutputRequest& request, const TowerRecomputeCounts& recomputed_blocks,
                                   nn::GenerationCache* cache) const {
  const at::Tensor embeddings = embed(batch, image_features.features);
  if (cache != nullptr) cache->begin_forward(batch.segments, config_.sliding_window);
  const MixerContext context = make_context(batch, cache);
  // Position 0 rotates by nothing, so blocks without RoPE have a table of zeros as positions.
  const auto unrotated_table = config_.has_blocks_without_rope()
                                   ? std::optional(nn::RotaryTable::from_positions(at::zeros_like(batch.position_ids),
                                                                                   rotary_frequencies_, /*scale=*/1))
                                   : std::nullopt;
  const auto make_block_context = [&](int64_t block) {
    MixerContext block_context = context;
    block_context.block = block;
    if (unrotated_table && !config_.uses_rope[static_cast<size_t>(block)])
      block_context.rotary_table = *unrotated_table;
    return block_context;
  };
  HiddenStateOptions options{.output_block_indices = request.text_block_indices};
  for (const auto& deepstack : image_features.deepstack_features) {
    // Feature level i is added after block i.
    options.deepstack_additions.push_back(
        {std::ssize(options.deepstack_additions), batch.image_token_positions, deepstack});
  }
  BlockListOutputs outputs = blocks_.run_with_contexts(embeddings, recomputed_blocks, make_block_context, options);
  return {.hidden_states = norm_(outputs.last_hidden_state.index_select(0, request.positions)),
          .text_block_outputs = std::move(outputs.intermediate_hidden_states)};
}

CausalLlama::CausalLlama(const nn::ParameterScope& scope, const LlamaConfig& config, const nn::ParameterScope& output)
    : text_(scope, config),
      output_weight_(config.tie_word_embeddings
                         ? text_.embedding_weight()
                         : output.add_parameter("weight", {config.vocab_size, config.hidden_size},
                                                nn::InitialValues::kaiming(config.hidden_size))) {}

}  // namespace vlmtrain::models
