#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "models/block_list.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models {

/// The SigLIP vision transformer (Zhai et al. 2023, arXiv 2303.15343) in the form of Idefics3's `vision_config`.
struct SiglipConfig {
  int64_t hidden_size = 1152;
  int64_t intermediate_size = 3072;
  int64_t layers = 12;
  int64_t heads = 16;
  int64_t image_size = 224;
  int64_t patch_size = 32;
  double layer_norm_eps = 1e-6;

  /// The defaults are those of transformers' Idefics3VisionConfig. `source` names the file in errors.
  static SiglipConfig from_json(const nlohmann::json& config, const std::string& source);
  int64_t patches_per_side() const { return image_size / patch_size; }
};

class SiglipBlock {
 public:
  SiglipBlock(const nn::ParameterScope& scope, const SiglipConfig& config);
  /// [rows, hidden] → [rows, hidden]; each tile is a segment.
  at::Tensor operator()(const at::Tensor& x, const nn::Segments& tiles) const;

 private:
  at::Tensor attend(const at::Tensor& x, const nn::Segments& tiles) const;

  int64_t heads_;
  nn::LayerNorm norm1_, norm2_;
  nn::Linear query_, key_, value_, out_;
  nn::Linear fc1_, fc2_;
};

class SiglipTower {
 public:
  SiglipTower(const nn::ParameterScope& scope, const SiglipConfig& config);

  /// Normalised pixels [tiles, 3, image_size, image_size] of the tower's dtype → [tiles · patches, hidden].
  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const;
  int64_t blocks() const { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;

  SiglipConfig config_;
  at::Tensor patch_weight_,
      patch_bias_;           // a convolution's [hidden, 3, patch, patch]; stride = kernel, so it is a Linear
  at::Tensor position_;      // [patches, hidden]
  at::Tensor position_ids_;  // int64 [patches]
  BlockList<SiglipBlock> blocks_;
  nn::LayerNorm post_norm_;
};

}  // namespace vlmtrain::models
