#pragma once

#include <cstdint>

namespace vlmtrain::engine {

/// How the next token is sampled. Names, order of application (penalty, temperature, top_k, top_p)
/// and results are those of transformers' GenerationConfig.
struct SamplingSettings {
  double temperature = 0;         ///< divides the logits; 0: greedy decoding (do_sample=False)
  int64_t top_k = 0;              ///< samples from the k most probable tokens, including ties; 0: from all
  double top_p = 1;               ///< samples from the smallest set of tokens whose probabilities sum to more than this
  double repetition_penalty = 1;  ///< divides positive logits of previous tokens, multiplies negative ones
  uint64_t seed = 0;              ///< seed of the random draws
};

}  // namespace vlmtrain::engine
