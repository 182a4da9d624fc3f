#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>

#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {

/// The positions that a model takes whose rope is stretched: the factor times what it was pretrained with, at least
/// `positions` (max_position_embeddings). Checkpoints write the longer context into max_position_embeddings or leave
/// the shorter one there, so the result is what the more generous reading says. `config`: of a checkpoint; settings of
/// its language model may stand in a section.
int64_t compute_extended_context(const nlohmann::json& config, int64_t positions);

/// models::read_context_length() of a checkpoint whose config.json is `config`.
ContextLength read_context_length(const nlohmann::json& config, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
