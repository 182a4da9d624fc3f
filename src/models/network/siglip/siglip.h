#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "models/network/vision_transformer/vision_transformer.h"

namespace vlmtrain::models {

/// The SigLIP vision transformer (Zhai et al. 2023, arXiv 2303.15343): `vision_config` of model_type
/// siglip_vision_model, with transformers' defaults. `source` names the file in errors.
VisionTransformerConfig siglip_config(const nlohmann::json& config, const std::string& source);

/// The same transformer in the form of Idefics3's `vision_config`: without a head, and with other defaults.
VisionTransformerConfig idefics3_vision_config(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::models
