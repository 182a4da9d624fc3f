#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "models/network/llama.h"
#include "models/qwen2_vl/model.h"
#include "models/qwen3_vl/family.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::qwen3_vl {

/// Bilinear interpolation (align_corners) of the square table of learned positions at the patches
/// of a forward pass. A patch has four table entries with weights, computed in fp32 as in
/// transformers. Patches are in the input order of qwen2_vl::PatchLayout.
struct PositionInterpolation {
  /// [4 · patches], indices of table entries: the first entry of all patches, then the second, and
  /// so on.
  std::vector<int64_t> indices;
  std::vector<float> weights;  ///< [4 · patches], in the order of `indices`

  /// Computes the interpolation. `side` is the side of the table, `merge` the number of patches
  /// along a side of a token. REQUIRES: rows and columns of each grid are multiples of `merge`.
  static PositionInterpolation make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge);
};

inline constexpr int64_t kNumInterpolationPoints = 4;  ///< table entries per patch

/// Vision tower of Qwen3-VL, without the mergers.
class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Embeds pixels as qwen2_vl::VisionTower::embed(), adds the interpolated positions and runs the
  /// blocks. Returns hidden states [patches, hidden] after the last block and after each of
  /// VisionConfig::deepstack_block_indices. `recomputed_blocks` blocks are recomputed in the
  /// backward pass.
  BlockListOutputs operator()(const image::ByteImages& pixels, const qwen2_vl::PatchLayout& layout,
                              const PositionInterpolation& interpolation, int64_t recomputed_blocks) const;
  int64_t num_blocks() const { return transformer_.num_blocks(); }

 private:
  qwen2_vl::VisionTower transformer_;
  at::Tensor position_embeddings_;  // [position_table_side², hidden]
  std::vector<int64_t> deepstack_block_indices_;
};

/// Projector: merges merge_size² patches into one token by a LayerNorm and two Linears.
class PatchMerger {
 public:
  /// Builds the merger. With `use_postshuffle_norm`, the LayerNorm covers the features of all
  /// patches of a token together, else those of each patch.
  PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config, bool use_postshuffle_norm);
  /// Maps patches [patches, hidden] → tokens [patches / merge_size², out_hidden_size].
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t merged_hidden_size_;
  bool use_postshuffle_norm_;
  nn::LayerNorm norm_;
  nn::Linear fc1_, fc2_;
};

/// Qwen3-VL and Qwen3.5: vision tower for images of any resolution, patch mergers and a text model
/// with positions on three axes (time, height, width). The tower's output replaces the embeddings of
/// image tokens. In Qwen3-VL, outputs of earlier tower blocks are added after the first text blocks
/// (DeepStack).
/// Parameter names are those of transformers.
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTower tower_;
  PatchMerger merger_;
  std::vector<PatchMerger> deepstack_mergers_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::qwen3_vl
