#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

struct GenerateSettings {
  at::Device device = at::kCPU;
  int64_t max_new_tokens = 64;
  int64_t end_of_turn_id = -1;
};

/// Greedy answers to a batch of prompts (models::Processor::process_prompt), without the end-of-turn token. The vision
/// tower runs once; each new token runs the language model over the whole sequences (there is no key-value cache).
std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerateSettings& settings);

}  // namespace vlmtrain::engine
