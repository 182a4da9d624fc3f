#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>

#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {

/// Returns the maximum number of positions of a model with RoPE scaling: the scaling factor times
/// the context length in pretraining, at least `positions`, the value of max_position_embeddings.
/// Checkpoints store either the extended or the original length in max_position_embeddings, so the
/// larger interpretation is used. `config` is the content of config.json; the language model's
/// settings may be in a section of it.
int64_t compute_extended_context(const nlohmann::json& config, int64_t positions);

/// Returns models::read_context_length() of the checkpoint in `folder`, whose config.json has the
/// content `config`.
ContextLength read_context_length(const nlohmann::json& config, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
