#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "models/network/config.h"

namespace vlmtrain::models::idefics3 {

/// `config.json` of Idefics3 and SmolVLM (Laurençon et al. 2024, arXiv 2408.12637; Marafioti et
/// al. 2025, arXiv 2504.05299). Both have the same modules and weight names.
struct Config {
  VisionTransformerConfig vision;
  LlamaConfig text;
  int64_t scale_factor = 2;  ///< pixel shuffle: scale_factor² adjacent patches become one image token
  int64_t image_token_id = 128257;

  /// Parses config.json. `source` names the file in errors. Throws UserError (kBadData) with the
  /// key.
  static Config from_json(const nlohmann::json& json, const std::string& source);
  int64_t image_tokens_per_tile() const {
    return vision.patches_per_side() * vision.patches_per_side() / (scale_factor * scale_factor);
  }
};

}  // namespace vlmtrain::models::idefics3
