#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/network/activation.h"
#include "models/network/llama.h"

namespace vlmtrain::models::qwen2_vl {

/// The vision tower. Qwen2-VL (Wang et al. 2024, arXiv 2409.12191): LayerNorm and an MLP of two Linears. Qwen2.5-VL
/// (Bai et al. 2025, arXiv 2502.13923): RMSNorm, a gated MLP, and attention within windows in most blocks.
struct VisionConfig {
  bool is_gated = true;  ///< Qwen2.5-VL's norms and MLP
  int64_t hidden_size = 1280;
  int64_t intermediate_size = 3420;
  int64_t blocks = 32;
  int64_t heads = 16;
  int64_t patch_size = 14;          ///< pixels
  int64_t temporal_patch_size = 2;  ///< frames
  int64_t merge_size = 2;           ///< patches on the side of the square that becomes one token
  int64_t output_size = 3584;
  Activation activation = Activation::kQuickGelu;  ///< of the MLP that is not gated
  const char* first_linear = "fc1";                ///< of that MLP, as checkpoints call it
  const char* second_linear = "fc2";
  bool patch_bias = false;
  double rope_theta = 10000;
  std::optional<int64_t> window_tokens;     ///< tokens on a window's side; nothing: no block has windows
  std::set<int64_t> full_attention_blocks;  ///< those without windows

  int64_t patches_per_token() const { return merge_size * merge_size; }
  /// A side in pixels is brought to a multiple of this.
  int64_t pixels_per_token_side() const { return patch_size * merge_size; }
  /// About how many parameters it has, the merger behind it included.
  double num_parameters() const;
  bool has_windows(int64_t block) const { return window_tokens && !full_attention_blocks.contains(block); }
};

/// What config.json of all Qwen-VL has of the tower under the same keys.
VisionConfig read_common_vision(const nlohmann::json& vision, const std::string& source);
/// Throws UserError (kBadData) where no tower has such sizes.
void check_sizes(const VisionConfig& vision, const std::string& source);
/// Takes mrope_section out of the rope settings of a text config, and "mrope", the older name of the default type;
/// `defaults` where it is not there.
std::vector<int64_t> extract_mrope_sections(nlohmann::json& text, std::vector<int64_t> defaults,
                                            const std::string& source);
/// Throws UserError (kBadData) where they do not divide a head's pairs.
void check_mrope_sections(const std::vector<int64_t>& sections, int64_t head_dim, const std::string& source);
/// The id of a token that config.json names under `key`, one of the vocabulary.
int64_t read_token_id(const nlohmann::json& config, const char* key, int64_t fallback, const LlamaConfig& text,
                      const std::string& source);

/// `config.json` of Qwen2-VL and Qwen2.5-VL: the text model's keys at the top (as published), or in text_config
/// (transformers 5).
struct Config {
  VisionConfig vision;
  LlamaConfig text;
  int64_t image_token_id = 151655;
  int64_t video_token_id = 151656;
  std::optional<int64_t> tokens_per_second;  ///< positions that a second of video takes; nothing: one a frame

  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
};

}  // namespace vlmtrain::models::qwen2_vl
