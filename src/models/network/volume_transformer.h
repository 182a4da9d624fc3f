#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/config.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// A vision transformer for volumes. Each volume attends to itself only.
class VolumeTransformer {
 public:
  VolumeTransformer(const nn::ParameterScope& scope, const VolumeTransformerConfig& config);

  /// Encodes `volumes` [rows, channels, x, y, z] of the tower's dtype, in a size that
  /// config.resolve_volume_size() accepts, to features [rows · patches, hidden], volume by volume,
  /// with the last axis fastest and without the class token. The first `recomputed_blocks` blocks
  /// are recomputed in the backward pass. `modalities` is int64 [rows]; undefined: unknown.
  at::Tensor operator()(const at::Tensor& volumes, const at::Tensor& modalities, int64_t recomputed_blocks) const;
  int64_t num_blocks() const { return blocks_.size(); }
  /// Returns the number of patches along each axis of `volumes` [rows, channels, x, y, z].
  VolumeShape compute_grid(const at::Tensor& volumes) const;

 private:
  at::Tensor compute_position_embeddings(const VolumeShape& grid) const;
  at::Tensor embed(const at::Tensor& volumes, const at::Tensor& modalities, const VolumeShape& grid) const;

  VolumeTransformerConfig config_;
  at::Tensor patch_weight_, patch_bias_;     // of a convolution, [hidden, channels, patch, patch, patch]
  std::vector<at::Tensor> position_tables_;  // [1, patches, hidden], or per axis [max_patches, hidden]
  at::Tensor class_token_;                   // [1, 1, hidden]; undefined: none
  at::Tensor modality_embeddings_;           // [modalities + 1, hidden]; undefined: none
  BlockList<VisionBlock> blocks_;
  nn::LayerNorm norm_;
};

}  // namespace vlmtrain::models
