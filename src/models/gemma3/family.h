#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "models/network/config.h"
#include "models/network/gemma/gemma_config.h"

namespace vlmtrain::models::gemma3 {

/// Parses a `text_config` with transformers' defaults. `source` names file and section in errors.
/// Throws UserError (kBadData) with the key for invalid and unsupported values.
GemmaConfig read_text_config(const nlohmann::json& json, const std::string& source);

/// `config.json` of Gemma 3 (Gemma Team 2025, arXiv 2503.19786) and MedGemma (Sellergren et al.
/// 2025, arXiv 2507.05201), in the formats of transformers 4 and 5.
struct Config {
  VisionTransformerConfig vision;
  GemmaConfig text;
  bool tie_word_embeddings = true;
  int64_t tokens_per_side = 16;  ///< side of the square that an image's patches are pooled to
  int64_t image_token_id = 262'144;
  int64_t image_start_token_id = 255'999;  ///< before an image's tokens; the chat template's placeholder for an image
  int64_t image_end_token_id = 256'000;    ///< after an image's tokens

  /// Parses config.json. `source` names the file in errors. Throws UserError (kBadData) with the
  /// key.
  static Config from_json(const nlohmann::json& json, const std::string& source);

  int64_t tokens_per_image() const { return tokens_per_side * tokens_per_side; }
  double num_parameters() const { return vision.num_parameters() + text.num_parameters(); }
};

}  // namespace vlmtrain::models::gemma3
