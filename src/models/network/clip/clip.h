#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "models/network/vision_transformer/vision_transformer.h"

namespace vlmtrain::models {

/// The vision transformer of CLIP (Radford et al. 2021, arXiv 2103.00020): `vision_config` of model_type
/// clip_vision_model, with transformers' defaults. `source` names the file in errors.
VisionTransformerConfig clip_config(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::models
