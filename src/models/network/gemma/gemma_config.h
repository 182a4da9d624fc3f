#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "models/network/rope.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::models {

/// Attention span of a block of Gemma.
enum class GemmaLayerType : uint8_t {
  kFull,     ///< all earlier tokens
  kSliding,  ///< the last tokens of a window, the token itself included
};

/// The attention of all blocks of one type.
struct GemmaAttentionConfig {
  nn::HeadShape heads = {};
  RopeConfig rope = {};
  std::optional<int64_t> window = std::nullopt;  ///< tokens; nothing: full attention
  /// Whether the tokens of an image also attend to its later tokens.
  bool is_bidirectional_in_images = true;
  double initial_query_gain = 1;  ///< of the QK-norm with random weights
};

/// The per-layer embeddings of Gemma 4's E2B and E4B.
struct GemmaPerLayerConfig {
  int64_t features = 0;    ///< of the per-layer input of a block; 0: no per-layer embeddings
  int64_t vocab_size = 0;  ///< rows of the table
};

/// The configuration of Gemma's text model: Gemma 3 (Gemma Team 2025, arXiv 2503.19786) or Gemma 4
/// (Google 2026; transformers' gemma4).
struct GemmaConfig {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int64_t pad_token_id = 0;  ///< whose embeddings media tokens read where nothing replaces them
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  double rms_norm_eps = 1e-6;
  double query_pre_attn_scalar = 256;  ///< attention scores are divided by its square root
  nn::NormGain norm_gain = nn::NormGain::kOnePlusWeight;
  bool normalizes_values = false;                ///< RMS norm of the values of each head, without a weight
  bool has_layer_scalar = false;                 ///< the output of a block is multiplied by a number of the checkpoint
  double logit_soft_cap = 0;                     ///< see nn::OutputProjection; 0: none
  std::vector<GemmaLayerType> layer_types = {};  ///< one per block
  GemmaAttentionConfig full = {}, sliding = {};  ///< of blocks of each type
  GemmaPerLayerConfig per_layer = {};
  /// Number of blocks at the end that read the keys and values of the last earlier block of their
  /// type.
  int64_t num_key_value_readers = 0;
  int64_t reader_intermediate_size = 0;  ///< as intermediate_size, of these blocks

  int64_t num_layers() const { return std::ssize(layer_types); }
  GemmaLayerType get_layer_type(int64_t block) const { return layer_types[static_cast<size_t>(block)]; }
  const GemmaAttentionConfig& get_attention(GemmaLayerType type) const {
    return type == GemmaLayerType::kFull ? full : sliding;
  }
  /// Returns the block whose keys and values a block reads: itself, or an earlier one.
  int64_t get_key_value_block(int64_t block) const;
  /// Returns whether later blocks read the keys and values of a block.
  bool shares_key_value(int64_t block) const;
  int64_t get_intermediate_size(int64_t block) const {
    return get_key_value_block(block) == block ? intermediate_size : reader_intermediate_size;
  }
  /// Estimates the number of parameters: those of matrices. Counts the output projection
  /// separately, also if it is tied.
  double num_parameters() const;
};

/// Throws UserError (kBadData) for heads that do not match each other, exceed the limits or have an
/// odd size. `source` names the file in errors.
void check_gemma_heads(const nn::HeadShape& heads, const std::string& source);

/// Returns the token id of `key` in config.json, `fallback` if it is missing. Throws UserError
/// (kBadData) unless it is in the text model's vocabulary. `source` names the file in errors.
int64_t read_gemma_token_id(const nlohmann::json& config, const char* key, int64_t fallback, int64_t vocab_size,
                            const std::string& source);

}  // namespace vlmtrain::models
