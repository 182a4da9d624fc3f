#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/convolution.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// Blocks of one width, between two mergings. The first stage's are convolutions, which have neither heads nor windows.
struct TinyVitStage {
  int64_t width = 0;
  int64_t blocks = 0;
  int64_t heads = 1;
  int64_t window = 1;  ///< rows and columns of the windows in which attention stays
};

/// The settings of a TinyVit; the defaults are MobileSAM's, 6 million parameters.
struct TinyVitConfig {
  std::vector<TinyVitStage> stages{{64, 2, 2, 7}, {128, 2, 4, 7}, {160, 6, 5, 14}, {320, 2, 10, 7}};
  double mlp_ratio = 4;
  double mbconv_expand_ratio = 4;
  int64_t local_conv_size = 3;
  /// Whether the last merging widens only, as MobileSAM has it; the original's halve height and width, all of them.
  bool last_merging_keeps_size = true;
  int64_t image_size = 1024;
  int64_t out_channels = 256;

  /// Keys of the original's code: image_size, embed_dims, depths, num_heads and window_sizes (lists with an entry a
  /// stage), mlp_ratio, mbconv_expand_ratio, local_conv_size; and last_merging_keeps_size and out_channels. Absent
  /// ones have the defaults. data_error names `source` and the key where they make no encoder of stride
  /// MaskEncoder::kStride.
  static TinyVitConfig from_json(const nlohmann::json& json, const std::string& source);

  /// Whether the merging behind this stage halves height and width. REQUIRES: it is not the last stage.
  bool has_downsampling(size_t stage) const { return !last_merging_keeps_size || stage + 2 < stages.size(); }
  int64_t stride() const;  ///< pixels of a picture's side to one feature
  int64_t blocks() const;  ///< of all stages, without mergings
  double num_parameters() const;
  int64_t mlp_features(int64_t width) const { return scale_width(width, mlp_ratio); }
  int64_t expanded_channels(int64_t width) const { return scale_width(width, mbconv_expand_ratio); }

 private:
  static int64_t scale_width(int64_t width, double ratio) {
    return static_cast<int64_t>(static_cast<double>(width) * ratio);  // rounded down
  }
};

/// TinyViT (Wu et al. 2022, arXiv 2207.10666) as MobileSAM (Zhang et al. 2023, arXiv 2306.14289) and TinySAM encode
/// pictures with it: two convolutions, stages of blocks with a merging behind each but the last, and SAM's neck.
/// Parameters have the names of MobileSAM's image_encoder; its norm_head and head, which no mask is made of, are none.
///
/// Weights fit any image_size: windows do not depend on it. Blocks, for recomputation, are MBConvs, mergings and
/// TinyVitBlocks. DropPath is not implemented: pretrained weights are tuned without it (MobileSAM's rate is 0).
class TinyVit : public MaskEncoder {
 public:
  TinyVit(const nn::ParameterScope& scope, const TinyVitConfig& config);

  /// As MaskEncoder says; channels are config.out_channels.
  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor neck(const at::Tensor& x) const;

  nn::ConvBatchNorm embedding1_, embedding2_;
  RecomputedBlocks blocks_;
  nn::Convolution neck1_;
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck2_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
