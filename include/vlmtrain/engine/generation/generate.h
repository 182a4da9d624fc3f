#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// The sampling of the next token. Names, order (penalty, temperature, top_k, top_p) and results
/// are those of transformers' GenerationConfig.
struct SamplingSettings {
  double temperature = 0;         ///< divides the logits; 0: greedy decoding (do_sample=False)
  int64_t top_k = 0;              ///< samples from the k most probable tokens, including ties; 0: all
  double top_p = 1;               ///< then from the smallest set of tokens whose probabilities sum to more than this
  double repetition_penalty = 1;  ///< divides positive logits of previous tokens, multiplies negative ones
  uint64_t seed = 0;              ///< seed of the random draws
};

/// Throws UserError (kUsage) that names a setting out of range.
void validate(const SamplingSettings& settings);

/// Returns `logits` fp32 [sequences, vocabulary] with the penalty applied to the previous tokens of
/// each sequence.
at::Tensor penalize_repetition(const at::Tensor& logits, std::span<const std::vector<int64_t>> previous_tokens,
                               double penalty);

/// Returns `logits` fp32 [sequences, vocabulary] divided by the temperature, with −inf for tokens
/// removed by top_k or top_p. REQUIRES: temperature > 0.
at::Tensor filter_logits(const at::Tensor& logits, const SamplingSettings& settings);

/// Returns int64 [sequences]: the first token at which the cumulative probability exceeds the
/// sequence's `uniform`, fp64 [sequences] in [0, 1).
at::Tensor sample_tokens(const at::Tensor& logits, const at::Tensor& uniform);

/// The settings of generation.
struct GenerateSettings {
  at::Device device = at::kCPU;
  int64_t max_new_tokens = 64;
  int64_t max_length = std::numeric_limits<int64_t>::max();  ///< maximum tokens of prompt and answer; ends the answer
  int64_t reserved_new_tokens = 0;          ///< tokens of an answer to reserve in the cache if more than max_new_tokens
  std::vector<int64_t> eos_token_ids = {};  ///< tokens that end an answer
  SamplingSettings sampling = {};
  /// Whether to use the key-value cache. Without it, each token runs the whole sequences: slow, for
  /// comparisons.
  bool use_cache = true;
  /// Whether to throw UserError (kFailed), naming a non-finite parameter, if logits are not finite.
  bool require_finite = false;
};

/// Returns answers to a batch of prompts (models::Processor::process_prompt), without the token
/// that ends them. The vision tower runs once. The prefill runs all prompts packed without padding;
/// each step then adds a token to every unfinished answer, using a key-value cache. Each step reads
/// the tokens back from the device. Sampled tokens depend on seed, index of the prompt, and step,
/// so results are reproducible.
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerateSettings& settings);

/// The same with precomputed vision features of all prompts, in order. The tiles of the prompts are
/// ignored.
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const models::ImageFeatures& image_features,
                                           const GenerateSettings& settings);

}  // namespace vlmtrain::engine
