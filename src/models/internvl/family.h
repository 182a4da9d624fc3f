#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>

#include "models/network/config.h"

namespace vlmtrain::models::internvl {

enum class NormType { kLayerNorm, kRmsNorm };

/// Section `vision_config` of InternViT, with transformers' defaults. The 300M model has
/// LayerNorms, the 6B model RMSNorms and QK-norm.
struct VisionConfig {
  int64_t hidden_size = 1024;
  int64_t intermediate_size = 4096;
  int64_t num_layers = 24;
  int64_t num_heads = 16;
  int64_t image_size = 448;  ///< side of a tile, in pixels
  int64_t patch_size = 14;   ///< side of a patch, in pixels
  double norm_eps = 1e-6;
  NormType norm_type = NormType::kLayerNorm;  ///< type of the blocks' norms
  Activation activation = Activation::kGelu;
  bool qkv_bias = false;
  bool qk_norm = false;                 ///< RMSNorms of queries and keys over all heads together
  bool has_final_norm = false;          ///< LayerNorm after the last block
  double layer_scale_init_value = 0.1;  ///< initial value of LayerScale's factors

  int64_t patches_per_side() const { return image_size / patch_size; }
  int64_t num_patches() const { return patches_per_side() * patches_per_side(); }
  /// Returns the number of positions of a tile: class token and patches.
  int64_t num_positions() const { return num_patches() + 1; }
};

/// `config.json` of InternVL 3 (Zhu et al. 2025, arXiv 2504.10479) and 3.5 (Wang et al. 2025,
/// arXiv 2508.18265) in transformers' format (`internvl`).
struct Config {
  VisionConfig vision;
  LlamaConfig text;
  int64_t scale_factor = 2;  ///< pixel shuffle: scale_factor² adjacent patches become one image token
  Activation projector_activation = Activation::kGelu;
  int64_t image_token_id = 151667;
  /// Whether RoPE is valid only up to text.max_positions: its type is `dynamic`, which would scale
  /// the frequencies of a longer sequence.
  bool is_hard_limit = false;

  /// Parses `json`, the content of `folder`/config.json. Throws UserError (kBadData) with the key.
  /// Reads weights in `folder` if the keys do not determine whether the output is tied.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
  int64_t image_tokens_per_tile() const { return vision.num_patches() / (scale_factor * scale_factor); }
  /// Estimates the number of parameters: those of matrices and positions.
  double num_parameters() const;
};

}  // namespace vlmtrain::models::internvl
