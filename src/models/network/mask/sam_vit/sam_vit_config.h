#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/activation.h"

namespace vlmtrain::models {

/// Sizes of SAM's image encoder; the defaults are ViT-B's.
struct SamVitConfig {
  int64_t hidden_size = 768;
  int64_t output_channels = 256;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t image_size = 1024;
  int64_t patch_size = 16;
  int64_t mlp_dim = 3072;
  double layer_norm_eps = 1e-6;
  Activation activation = Activation::kGelu;
  bool qkv_bias = true;
  bool absolute_positions = true;
  bool relative_positions = true;
  int64_t window_size = 14;                            ///< patches on the side of a window
  std::vector<int64_t> global_blocks = {2, 5, 8, 11};  ///< whose attention sees the whole picture

  /// Reads transformers' SamVisionConfig. `source` names the file in errors.
  static SamVitConfig from_json(const nlohmann::json& config, const std::string& source);

  /// About how many parameters it has.
  double num_parameters() const;

  /// Patches on the side of a picture.
  int64_t side() const { return image_size / patch_size; }
  /// Of a block; 0: it sees the whole picture.
  int64_t get_window_size(int64_t block) const;
};

}  // namespace vlmtrain::models
