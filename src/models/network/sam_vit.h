#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/activation.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

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

/// Attention over a square of patches whose scores also depend on how far apart two patches are in each direction: a
/// query's product with a learnt vector for the distance in rows, and one for that in columns (Li et al. 2021, arXiv
/// 2112.01526, section 4.1).
class SamVitAttention {
 public:
  /// `side`: patches on the square's.
  SamVitAttention(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t side);
  /// [squares · side², hidden] → the same, without the last Linear
  at::Tensor operator()(const at::Tensor& x) const;
  /// The last Linear, which works row by row.
  at::Tensor project(const at::Tensor& x) const { return proj_(x); }

 private:
  at::Tensor compute_relative_bias(const at::Tensor& query) const;

  int64_t heads_;
  int64_t side_;
  nn::Linear qkv_;
  nn::Linear proj_;
  at::Tensor rel_pos_h_, rel_pos_w_;  // [2 · side − 1, head_dim], from −(side − 1) up; undefined: none
};

/// A block of SAM's image encoder, whose attention sees the whole picture or windows of it.
class SamVitBlock {
 public:
  SamVitBlock(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t window);
  /// [pictures · side², hidden] → the same
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor window_partition(const at::Tensor& x) const;
  at::Tensor window_unpartition(const at::Tensor& x) const;

  int64_t side_;     // of a picture
  int64_t window_;   // of a window; 0: none
  int64_t windows_;  // on a picture's side, of which the last may reach beyond it
  Activation activation_;
  nn::LayerNorm norm1_;
  SamVitAttention attention_;
  nn::LayerNorm norm2_;
  nn::Linear lin1_, lin2_;
};

/// SAM's image encoder (Kirillov et al. 2023, arXiv 2304.02643): a vision transformer most of whose blocks see windows
/// of the picture, and a neck of two convolutions. Names of transformers' SamVisionEncoder.
class SamVit : public MaskEncoder {
 public:
  SamVit(const nn::ParameterScope& scope, const SamVitConfig& config);

  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor neck(const at::Tensor& x) const;

  SamVitConfig config_;
  at::Tensor patch_weight_, patch_bias_;  // a convolution's [hidden, 3, patch, patch]; stride = kernel: it is a Linear
  at::Tensor pos_embed_;                  // [1, side, side, hidden]; undefined: none
  RecomputedBlocks blocks_;
  at::Tensor neck_weight_;  // a convolution's [channels, hidden, 1, 1], so it is a Linear
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck_convolution_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
