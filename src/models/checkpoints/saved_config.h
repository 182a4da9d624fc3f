#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// Sets all vocabulary sizes in the content of a config.json to `rows`, the rows of the embedding.
/// Adds the key to the text model's section if it is absent.
void set_vocab_size(nlohmann::json& config, int64_t rows);
void set_vocab_size(nlohmann::ordered_json& config, int64_t rows);

/// Returns the content of config.json for the weights of `model`, made from `content`, the base's
/// config.json. Sets the keys that tie the output projection, removes quantization_config, applies
/// model.add_saved_settings(), and sets the dtype if `dtype` is given. `source` names the base's
/// file in errors.
std::string make_saved_config(const VisionLanguageModel& model, const std::string& content, const std::string& source,
                              std::optional<at::ScalarType> dtype);

}  // namespace vlmtrain::models
