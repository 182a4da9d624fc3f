#include "models/network/llama/causal_llama.h"

namespace vlmtrain::models {

CausalLlama::CausalLlama(const nn::ParameterScope& scope, const LlamaConfig& config, const nn::ParameterScope& output)
    : text_(scope, config),
      output_weight_(config.tie_word_embeddings ? text_.embedding_weight()
                                                : output.parameter("weight", {config.vocab_size, config.hidden_size},
                                                                   nn::InitialValues::kaiming(config.hidden_size))) {}

}  // namespace vlmtrain::models
