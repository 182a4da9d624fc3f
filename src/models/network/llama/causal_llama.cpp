#include "models/network/llama/causal_llama.h"

namespace vlmtrain::models {

CausalLlama::CausalLlama(const nn::ParameterScope& scope, const LlamaConfig& config, const nn::ParameterScope& output)
    : text_(scope, config),
      output_weight_(config.tie_word_embeddings ? text_.embedding_weight()
                                                : output.parameter("weight", {config.vocab_size, config.hidden_size},
                                                                   nn::InitialValues::for_fan_in(config.hidden_size))) {
}

at::Tensor CausalLlama::hidden_states(const data::MicroBatch& batch, const at::Tensor& image_features,
                                      const at::Tensor& output_positions, int64_t recomputed_blocks,
                                      nn::KeyValueCache* cache) const {
  return text_(text_.embed(batch, image_features), batch.position_ids, batch.segments, output_positions,
               recomputed_blocks, cache);
}

}  // namespace vlmtrain::models
