#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/config.h"

namespace vlmtrain::models::gemma3 {

/// Attention span of a block. Tokens of the same image also attend to each other in both
/// directions.
enum class LayerType : uint8_t {
  kFull,     ///< all earlier tokens
  kSliding,  ///< the last `sliding_window` tokens, the token itself included
};

/// Section `text_config` of config.json, with transformers' defaults.
struct TextConfig {
  int64_t vocab_size = 262'208;
  int64_t max_positions = 131'072;
  int64_t hidden_size = 2304;
  int64_t intermediate_size = 9216;
  int64_t num_heads = 8;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 256;
  double rms_norm_eps = 1e-6;
  double query_pre_attn_scalar = 256;            ///< attention scores are divided by its square root
  int64_t sliding_window = 4096;                 ///< tokens
  std::vector<LayerType> layer_types = {};       ///< one per block
  RopeConfig full_rope = {}, sliding_rope = {};  ///< of blocks of each layer type

  /// Parses a `text_config`. `source` names file and section in errors. Throws UserError (kBadData)
  /// with the key for invalid and unsupported values.
  static TextConfig from_json(const nlohmann::json& json, const std::string& source);

  int64_t num_layers() const { return std::ssize(layer_types); }
  /// Estimates the number of parameters: those of matrices. Counts the output projection
  /// separately, also if it is tied.
  double num_parameters() const;
};

/// `config.json` of Gemma 3 (Gemma Team 2025, arXiv 2503.19786) and MedGemma (Sellergren et al.
/// 2025, arXiv 2507.05201), in the formats of transformers 4 and 5.
struct Config {
  VisionTransformerConfig vision;
  TextConfig text;
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
