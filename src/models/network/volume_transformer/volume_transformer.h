#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/vision_transformer/vision_transformer.h"
#include "models/network/volume_transformer/volume_transformer_config.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// The vision transformer of volumes. Each volume is seen alone.
class VolumeTransformer {
 public:
  VolumeTransformer(const nn::ParameterScope& scope, const VolumeTransformerConfig& config);

  /// `volumes` [rows, channels, x, y, z] of the tower's dtype, of a size that config.volume_size() takes; `modalities`
  /// int64 [rows], undefined: none is known → [rows · patches, hidden], volume by volume, the patches with the last
  /// axis fastest.
  at::Tensor operator()(const at::Tensor& volumes, const at::Tensor& modalities, int64_t recomputed_blocks) const;
  int64_t blocks() const { return blocks_.size(); }
  /// Patches on each axis of such volumes.
  VolumeAxes compute_grid(const at::Tensor& volumes) const;

 private:
  at::Tensor compute_positions(const VolumeAxes& grid) const;
  at::Tensor embed(const at::Tensor& volumes, const at::Tensor& modalities, const VolumeAxes& grid) const;

  VolumeTransformerConfig config_;
  at::Tensor patch_weight_, patch_bias_;  // a convolution's [hidden, channels, patch, patch, patch]; stride = kernel
  std::vector<at::Tensor> positions_;     // [1, patches, hidden], or of each axis [most patches, hidden]
  at::Tensor class_token_;                // [1, 1, hidden]; undefined: none
  at::Tensor modality_embeddings_;        // [modalities + 1, hidden]; undefined: none
  BlockList<VisionBlock> blocks_;
  nn::LayerNorm norm_;
};

}  // namespace vlmtrain::models
