#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "vlmtrain/data/sample.h"
#include "vlmtrain/engine/sampling.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

struct GenerateSettings {
  at::Device device = at::kCPU;
  int64_t max_new_tokens = 64;
  int64_t max_length = std::numeric_limits<int64_t>::max();  ///< of a prompt and its answer, which ends there
  int64_t reserved_new_tokens = 0;          ///< of an answer in the cache, where that is more than max_new_tokens
  std::vector<int64_t> eos_token_ids = {};  ///< each ends an answer
  SamplingSettings sampling = {};
  /// Without, each new token runs the model over the whole sequences: slow, and there to be compared with.
  bool use_cache = true;
  /// Throws UserError (kFailed) where the logits are not finite, which names a parameter that is not.
  bool require_finite = false;
};

/// Answers to a batch of prompts (models::Processor::process_prompt), without the token that ends them. The vision
/// tower runs once. The prompts pass the language model together, without padding; then each step adds a token to each
/// answer that has not ended, from the keys and values of what came before (nn::KeyValueCache). A step reads the chosen
/// tokens back from the device. Drawn tokens depend on seed, place of the prompt and step, so that answers are the same
/// in every run.
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerateSettings& settings);

/// The same with the vision features of all prompts known, in order. Tiles are not looked at.
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const models::ImageFeatures& image_features,
                                           const GenerateSettings& settings);

}  // namespace vlmtrain::engine
