#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace vlmtrain::engine {

/// How the next token is chosen; the names and the order (penalty, temperature, top_k, top_p) are those of
/// transformers' GenerationConfig, and so are the numbers.
struct SamplingSettings {
  double temperature = 0;         ///< divides the logits; 0: always the most probable token (do_sample=False)
  int64_t top_k = 0;              ///< draws from the k most probable tokens and those as probable; 0: from all
  double top_p = 1;               ///< then from the fewest tokens whose probabilities sum to more than that
  double repetition_penalty = 1;  ///< divides positive logits of tokens that occurred, multiplies negative ones
  uint64_t seed = 0;              ///< of the draws
};

/// Throws UserError (kUsage) that names the setting which is out of range.
void validate(const SamplingSettings& settings);

/// `logits` fp32 [sequences, vocabulary] with repetition_penalty for the tokens that occur in each sequence.
at::Tensor penalize_repetition(const at::Tensor& logits, std::span<const std::vector<int64_t>> previous_tokens,
                               double penalty);

/// What the softmax of is drawn from, fp32 [sequences, vocabulary]: −inf for tokens that top_k or top_p leave out.
/// REQUIRES: temperature > 0.
at::Tensor filter_logits(const at::Tensor& logits, const SamplingSettings& settings);

/// int64 [sequences]: the first token at which the cumulated probability passes the sequence's number of `uniform`,
/// fp64 [sequences] in [0, 1).
at::Tensor sample_tokens(const at::Tensor& logits, const at::Tensor& uniform);

}  // namespace vlmtrain::engine
