#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/network/mask/sam_vit/sam_vit_config.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

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

}  // namespace vlmtrain::models
