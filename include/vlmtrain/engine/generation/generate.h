#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/settings/sampling_settings.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// Throws UserError (kUsage) that names a setting out of range.
void check_sampling_ranges(const SamplingSettings& settings);

/// Returns `logits` fp32 [sequences, vocabulary] with the penalty applied to the previous tokens of
/// each sequence.
at::Tensor penalize_repetition(const at::Tensor& logits, std::span<const std::vector<int64_t>> previous_tokens,
                               double penalty);

/// Returns `logits` fp32 [sequences, vocabulary] divided by the temperature, with −inf for tokens
/// removed by top_k or top_p. REQUIRES: temperature > 0.
at::Tensor filter_logits(const at::Tensor& logits, const SamplingSettings& settings);

/// Samples a token per sequence from `logits` fp32 [sequences, vocabulary]. Returns int64
/// [sequences]: the first token at which the cumulative probability exceeds the sequence's random
/// number. `uniform` fp64 [sequences] has random numbers in [0, 1).
at::Tensor sample_tokens(const at::Tensor& logits, const at::Tensor& uniform);

/// The settings of generation.
struct GenerationSettings {
  at::Device device = at::kCPU;
  int64_t max_new_tokens = 64;
  int64_t max_length = std::numeric_limits<int64_t>::max();  ///< maximum tokens of prompt and answer together
  int64_t min_reserved_new_tokens = 0;      ///< reserves cache memory for at least this many tokens per answer
  std::vector<int64_t> eos_token_ids = {};  ///< tokens that end an answer
  SamplingSettings sampling = {};
  /// Whether to use the key-value cache. Without it, each step runs the whole sequences, which is
  /// slow; for comparisons.
  bool use_cache = true;
  /// Whether to throw UserError (kFailed) if logits are not finite. The message names a non-finite
  /// parameter, if there is one.
  bool require_finite_logits = false;
};

/// Returns the token ids of the answers to a batch of prompts (models::Processor::process_prompt),
/// in order, without the token that ends an answer. The vision tower runs once. The prefill runs
/// all prompts packed without padding; each step then adds a token to every unfinished answer. Each
/// step copies the tokens to the host. The random numbers depend only on seed, index of the prompt,
/// and step, so results are reproducible. Throws UserError (kUsage) for invalid sampling settings.
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerationSettings& settings);

/// The same with precomputed vision features of all prompts, in order. The pixels of the prompts
/// are not used.
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const models::ImageFeatures& image_features,
                                           const GenerationSettings& settings);

}  // namespace vlmtrain::engine
