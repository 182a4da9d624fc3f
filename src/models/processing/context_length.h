#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>

#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {

/// Returns the maximum number of positions of a model with RoPE scaling: the factor times the
/// pretraining length, at least `positions` (max_position_embeddings). Checkpoints store either the
/// extended or the original length in max_position_embeddings, so the larger interpretation is
/// used. `config` may have the language model's settings in a section.
int64_t compute_extended_context(const nlohmann::json& config, int64_t positions);

/// Returns models::read_context_length() of a checkpoint with the given config.json.
ContextLength read_context_length(const nlohmann::json& config, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
