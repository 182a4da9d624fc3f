#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/media/patch_format.h"
#include "models/network/config.h"

namespace vlmtrain::models::qwen2_vl {

/// Config of the vision tower. Qwen2-VL (Wang et al. 2024, arXiv 2409.12191) has LayerNorm and an
/// MLP of two Linears. Qwen2.5-VL (Bai et al. 2025, arXiv 2502.13923) has RMSNorm, a gated MLP, and
/// window attention in most blocks.
struct VisionConfig {
  bool uses_qwen2_5_layers = true;  ///< RMSNorm and gated MLP of Qwen2.5-VL, else LayerNorm and an MLP of two Linears
  int64_t hidden_size = 1280;
  int64_t intermediate_size = 3420;
  int64_t num_blocks = 32;
  int64_t num_heads = 16;
  int64_t patch_size = 14;          ///< side of a patch, in pixels
  int64_t temporal_patch_size = 2;  ///< frames per patch
  int64_t merge_size = 2;           ///< a token covers a square of merge_size² patches
  int64_t out_hidden_size = 3584;   ///< features of the merger's output
  // The next three are settings of an MLP that is not gated.
  Activation activation = Activation::kQuickGelu;
  const char* first_linear_name = "fc1";   ///< checkpoint name of the first Linear
  const char* second_linear_name = "fc2";  ///< checkpoint name of the second Linear
  bool has_patch_bias = false;             ///< whether the patch embedding has a bias
  double rope_theta = 10000;
  std::optional<int64_t> tokens_per_window_side;  ///< nothing: no block has windows
  std::set<int64_t> full_attention_blocks;        ///< indices of the blocks without windows

  int64_t patches_per_token() const { return merge_size * merge_size; }
  /// Returns the number of pixels along a side of a token. Sides of resized images are multiples of
  /// it.
  int64_t pixels_per_token_side() const { return patch_size * merge_size; }
  PatchFormat patch_format() const {
    return {.patch_size = patch_size,
            .frames_per_patch = temporal_patch_size,
            .merge_size = merge_size,
            .has_position_axes = true};
  }
  /// Estimates the number of parameters: those of matrices, merger included.
  double num_parameters() const;
  bool has_windows(int64_t block) const { return tokens_per_window_side && !full_attention_blocks.contains(block); }
};

/// Reads the keys of a vision_config that all Qwen-VL models share. `source` names the file in
/// errors, here and below. Throws UserError (kBadData) with the key.
VisionConfig read_common_vision_config(const nlohmann::json& vision, const std::string& source);
/// Throws UserError (kBadData) for sizes outside of the limits of config_checks.h, and for heads
/// that cannot have a 2D RoPE.
void check_vision_sizes(const VisionConfig& vision, const std::string& source);
/// Returns mrope_section of a text config: the numbers of RoPE pairs per head for time, height and
/// width; `defaults` if it is missing. Replaces the RoPE type "mrope" in `text` by its newer name,
/// "default".
std::vector<int64_t> extract_mrope_sections(nlohmann::json& text, std::vector<int64_t> defaults,
                                            const std::string& source);
/// Throws UserError (kBadData) unless there are three sections whose sum is head_dim / 2.
void check_mrope_sections(const std::vector<int64_t>& sections, int64_t head_dim, const std::string& source);
/// Returns the token id of config.json's `key`. Throws UserError (kBadData) for an id outside the
/// vocabulary.
int64_t read_token_id(const nlohmann::json& config, const char* key, int64_t fallback, const LlamaConfig& text,
                      const std::string& source);

/// `config.json` of Qwen2-VL and Qwen2.5-VL: the text model's keys are at the top level (as
/// published) or in text_config (transformers 5).
struct Config {
  VisionConfig vision;
  LlamaConfig text;
  int64_t image_token_id = 151655;
  int64_t video_token_id = 151656;
  std::optional<int64_t> tokens_per_second;  ///< positions per second of video; nothing: one per temporal patch

  /// Parses `json`, the content of `folder`/config.json. Throws UserError (kBadData) with the key.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
};

}  // namespace vlmtrain::models::qwen2_vl
