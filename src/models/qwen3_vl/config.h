#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "models/network/llama/llama.h"
#include "models/qwen2_vl/config.h"

namespace vlmtrain::models::qwen3_vl {

/// Qwen3-VL's tower (Bai et al. 2025, arXiv 2511.21631): Qwen2-VL's with other names, a bias of the patch embedding, a
/// learned table of positions beside the rotary ones, and DeepStack.
struct VisionConfig : qwen2_vl::VisionConfig {
  int64_t position_side = 48;  ///< entries on a side of the square table, which is stretched over a frame
  /// Blocks whose output is projected, too, and added behind the text model's first blocks, in this order; ascending.
  std::vector<int64_t> deepstack_blocks = {8, 16, 24};

  double num_parameters() const;
};

/// `config.json` of the dense Qwen3-VL.
struct Config {
  VisionConfig vision;
  LlamaConfig text;
  int64_t image_token_id = 151655;
  int64_t video_token_id = 151656;

  static Config from_json(const nlohmann::json& json, const std::filesystem::path& folder);
};

}  // namespace vlmtrain::models::qwen3_vl
