#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace vlmtrain::models {

/// Changes the content of a config.json so that it describes a model whose output projection has values of its own:
/// `tie_word_embeddings` (nanoVLM: `lm_tie_weights`) is false wherever it stands, and at the top in any case.
void untie_output(nlohmann::json& config);
void untie_output(nlohmann::ordered_json& config);

/// Changes every size of the vocabulary in the content of a config.json, that of its text model in any case.
void set_vocabulary(nlohmann::json& config, int64_t rows);
void set_vocabulary(nlohmann::ordered_json& config, int64_t rows);

}  // namespace vlmtrain::models
