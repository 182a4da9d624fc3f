#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "models/network/llama.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/model.h"
#include "models/qwen2_vl/vision_tower.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::qwen3_vl {

/// Config of Qwen3-VL's tower (Bai et al. 2025, arXiv 2511.21631): Qwen2-VL's tower with other
/// names, a bias of the patch embedding, learned positions besides the rotary ones, and DeepStack.
struct VisionConfig : qwen2_vl::VisionConfig {
  int64_t position_side = 48;  ///< entries per side of the square table of positions, interpolated to a frame
  /// Indices, ascending, of the blocks whose projected output is added to the output of the text
  /// model's first blocks, in this order.
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

/// Interpolation of the square table of learned positions at the patches of a pass: bilinear with
/// align_corners, four entries and weights per patch, computed in fp32 as in transformers. Patches
/// are ordered as in qwen2_vl::PatchLayout.
struct PositionInterpolation {
  /// [4 · patches], rows of the table: the first entry of all patches, then the second ….
  std::vector<int64_t> indices;
  std::vector<float> weights;  ///< [4 · patches], as indices

  /// Computes the interpolation. `side`: of the table. `merge`: patches per side of a token;
  /// REQUIRES: rows and columns are multiples of it.
  static PositionInterpolation make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge);
};

inline constexpr int64_t kInterpolationPoints = 4;

class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Embeds pixels as qwen2_vl::VisionTower::embed does and runs the blocks → [patches, hidden]
  /// after the last block and after each of VisionConfig::deepstack_blocks.
  BlockOutputs operator()(const image::BytePixels& pixels, const qwen2_vl::PatchLayout& layout,
                          const PositionInterpolation& interpolation, int64_t recomputed_blocks) const;
  int64_t blocks() const { return transformer_.blocks(); }

 private:
  qwen2_vl::VisionTower transformer_;
  at::Tensor positions_;  // [position_side², hidden]
  std::vector<int64_t> deepstack_blocks_;
};

/// Merger of merge_size² patches into one token.
class PatchMerger {
 public:
  /// Builds the merger. `use_postshuffle_norm`: the norm covers the features of a token's patches
  /// together, else of each patch.
  PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config, bool use_postshuffle_norm);
  /// Returns the tokens: [patches, hidden] → [tokens, output_size].
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t merged_size_;
  bool use_postshuffle_norm_;
  nn::LayerNorm norm_;
  nn::Linear first_, second_;
};

/// Qwen3-VL: vision tower of native resolution, patch mergers and a Qwen3 text model with positions
/// on three axes. Features of the tower enter the text model as tokens and, from earlier blocks,
/// after its first blocks (DeepStack).
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTower tower_;
  PatchMerger merger_;
  std::vector<PatchMerger> deepstack_mergers_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::qwen3_vl
