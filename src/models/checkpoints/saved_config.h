#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Changes every size of the vocabulary in the content of a config.json, that of its text model in any case.
void set_vocab_size(nlohmann::json& config, int64_t rows);
void set_vocab_size(nlohmann::ordered_json& config, int64_t rows);

/// Returns the config.json that belongs to the weights of `model`, made of the base's `content`: the keys that tie the
/// output projection are as the model is, a left-over quantization_config is gone, and `dtype` is set where there is
/// one. `source` names the base's file in errors.
std::string make_saved_config(const VisionLanguageModel& model, const std::string& content, const std::string& source,
                              std::optional<at::ScalarType> dtype);

}  // namespace vlmtrain::models
