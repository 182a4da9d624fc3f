#pragma once

#include <ATen/core/Tensor.h>

#include "models/qwen2_vl/vision_tower.h"
#include "models/qwen3_vl/config.h"
#include "models/qwen3_vl/position_taps.h"

namespace vlmtrain::models::qwen3_vl {

class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Pixels as qwen2_vl::VisionTower::embed takes them → [patches, hidden], behind the last block and behind
  /// each of VisionConfig::deepstack_blocks.
  BlockOutputs operator()(const image::BytePixels& pixels, const qwen2_vl::PatchLayout& layout,
                          const PositionInterpolation& interpolation, int64_t recomputed_blocks) const;
  int64_t blocks() const { return transformer_.blocks(); }

 private:
  qwen2_vl::VisionTower transformer_;
  at::Tensor positions_;  // [position_side², hidden]
  std::vector<int64_t> deepstack_blocks_;
};

/// Each square of merge_size² patches becomes one token.
class PatchMerger {
 public:
  /// `use_postshuffle_norm`: the norm is over the features of a token's patches together, else of each patch.
  PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config, bool use_postshuffle_norm);
  /// [patches, hidden] → [tokens, output_size]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t merged_size_;
  bool use_postshuffle_norm_;
  nn::LayerNorm norm_;
  nn::Linear first_, second_;
};

}  // namespace vlmtrain::models::qwen3_vl
