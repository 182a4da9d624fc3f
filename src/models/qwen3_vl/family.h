#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "models/network/config.h"
#include "models/qwen2_vl/family.h"

namespace vlmtrain::models::qwen3_vl {

/// Config of the vision tower of Qwen3-VL (Bai et al. 2025, arXiv 2511.21631): the tower of
/// Qwen2-VL with other parameter names, a bias of the patch embedding, learned positions in
/// addition to RoPE, and DeepStack.
struct VisionConfig : qwen2_vl::VisionConfig {
  int64_t position_table_side = 48;  ///< side of the square table of positions, which is interpolated to each frame
  /// Ascending indices of the tower blocks whose merged output is added to the text model: that of
  /// the i-th listed block to the output of text block i.
  std::vector<int64_t> deepstack_block_indices = {};

  /// Estimates the number of parameters: those of matrices, mergers and position table included.
  double num_parameters() const;
};

/// `config.json` of the dense Qwen3-VL, Qwen3.5, Qwen3.6 and Qwen3.8.
struct Config {
  VisionConfig vision;
  LlamaConfig text;
  int64_t image_token_id = 151655;
  int64_t video_token_id = 151656;

  /// Parses `json`, the content of `folder`/config.json. Throws UserError (kBadData) with the key.
  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
};

}  // namespace vlmtrain::models::qwen3_vl
