#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <variant>

#include "models/gemma4/image_processor.h"
#include "models/gemma4/processor.h"
#include "models/network/gemma/gemma_config.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::models::gemma4 {

/// The `vision_config` of model_type gemma4_vision: a tower for images in their own resolution.
struct TowerConfig {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_layers = 16;
  nn::HeadShape heads = {};
  double rms_norm_eps = 1e-6;
  double rope_theta = 100;
  int64_t num_positions = 10'240;    ///< of the position table along each axis
  bool has_clipped_linears = false;  ///< inputs and outputs of Linears are clamped to ranges of the checkpoint
  bool standardizes = false;         ///< pooled features are shifted and scaled by vectors of the checkpoint

  double num_parameters() const;
};

/// The `vision_config` of model_type gemma4_unified_vision: patches are embedded without a tower.
struct PatchEmbedderConfig {
  int64_t embed_dim = 3840;
  int64_t num_positions = 1120;  ///< of the position table along each axis
  double rms_norm_eps = 1e-6;
};

/// `config.json` of Gemma 4 (Google 2026; transformers' gemma4 and gemma4_unified).
struct Config {
  GemmaConfig text;
  std::variant<TowerConfig, PatchEmbedderConfig> vision;
  ProcessorConfig processor;
  bool tie_word_embeddings = true;

  /// Parses config.json. `source` names the file in errors. Throws UserError (kBadData) with the
  /// key.
  static Config from_json(const nlohmann::json& json, const std::string& source);

  double num_parameters() const;
};

}  // namespace vlmtrain::models::gemma4
