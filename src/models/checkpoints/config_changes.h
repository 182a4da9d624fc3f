#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace vlmtrain::models {

/// Changes every size of the vocabulary in the content of a config.json, that of its text model in any case.
void set_vocab_size(nlohmann::json& config, int64_t rows);
void set_vocab_size(nlohmann::ordered_json& config, int64_t rows);

}  // namespace vlmtrain::models
