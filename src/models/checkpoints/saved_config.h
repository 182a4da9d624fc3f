#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Returns the config.json that belongs to the weights of `model`, made of the base's `content`: the keys that tie the
/// output projection are as the model is, a left-over quantization_config is gone, and `dtype` is set where there is
/// one. `source` names the base's file in errors.
std::string make_saved_config(const VisionLanguageModel& model, const std::string& content, const std::string& source,
                              std::optional<at::ScalarType> dtype);

}  // namespace vlmtrain::models
