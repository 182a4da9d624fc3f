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
#include "vlmtrain/data/sample.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

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

/// Where the patches of a pass read the square table of learned positions, stretched over each frame with its corners
/// on the frame's (bilinear, align_corners): four entries and their weights a patch, computed in fp32 as transformers
/// does. Patches come token by token, as in qwen2_vl::PatchLayout.
struct PositionInterpolation {
  std::vector<int64_t> indices;  ///< [4 · patches]: all first ones, all second ones …; rows of the table
  std::vector<float> weights;    ///< as entries

  /// `side` of the table; `merge` patches on the side of a token, of which rows and columns are multiples.
  static PositionInterpolation make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge);
};

inline constexpr int64_t kInterpolationPoints = 4;

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

/// Vision tower of native resolution, patch mergers and a Qwen3 text model with positions on three axes. The tower's
/// features reach the text model as tokens and, from earlier blocks, behind its first blocks (DeepStack).
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
