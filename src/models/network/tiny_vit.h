#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/network/mask_encoder.h"
#include "vlmtrain/nn/layers/convolution.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// A stage of TinyViT: blocks of one width. The first stage is convolutional, without heads and
/// windows.
struct TinyVitStage {
  int64_t width = 0;  ///< channels
  int64_t num_blocks = 0;
  int64_t num_heads = 1;
  int64_t window = 1;  ///< side of the attention windows, in positions
};

/// The configuration of a TinyVit; the defaults are MobileSAM's, with 6 million parameters.
struct TinyVitConfig {
  std::vector<TinyVitStage> stages{{64, 2, 2, 7}, {128, 2, 4, 7}, {160, 6, 5, 14}, {320, 2, 10, 7}};
  double mlp_ratio = 4;            ///< hidden features of an MLP per channel
  double mbconv_expand_ratio = 4;  ///< inner channels of an MBConv per channel
  int64_t local_conv_size = 3;     ///< kernel of the depthwise convolution in a TinyVitBlock
  /// Whether the last merging only widens, as in MobileSAM. In the original TinyViT it also halves
  /// height and width.
  bool last_merging_keeps_size = true;
  int64_t image_size = 1024;
  int64_t out_channels = 256;

  /// Reads the keys of the original code: image_size, embed_dims, depths, num_heads and
  /// window_sizes (one entry per stage), mlp_ratio, mbconv_expand_ratio, local_conv_size; also
  /// last_merging_keeps_size and out_channels. Throws UserError (kBadData) for invalid values and
  /// if the stride of the encoder is not MaskImageEncoder::kFeatureStride. `source` names the file
  /// in errors.
  static TinyVitConfig from_json(const nlohmann::json& json, const std::string& source);

  /// Returns whether the merging after a stage halves height and width. REQUIRES: it is not the
  /// last stage.
  bool has_downsampling(size_t stage) const { return !last_merging_keeps_size || stage + 2 < stages.size(); }
  int64_t stride() const;         ///< pixels per feature along an image's side
  int64_t num_blocks() const;     ///< blocks of all stages, without mergings
  double num_parameters() const;  ///< estimate
  /// Returns the hidden features of an MLP, or the inner channels of an MBConv, in a stage of
  /// `width` channels. Rounded down.
  int64_t compute_mlp_width(int64_t width) const { return scale_width(width, mlp_ratio); }
  int64_t compute_expanded_channels(int64_t width) const { return scale_width(width, mbconv_expand_ratio); }

 private:
  static int64_t scale_width(int64_t width, double ratio) {
    return static_cast<int64_t>(static_cast<double>(width) * ratio);  // rounded down
  }
};

/// TinyViT (Wu et al. 2022, arXiv 2207.10666) as the image encoder of MobileSAM (Zhang et al. 2023,
/// arXiv 2306.14289) and TinySAM: two convolutions, stages of blocks with mergings between them,
/// and SAM's neck. Parameters have the names of MobileSAM's image_encoder, without norm_head and
/// head, which are not used for masks.
/// Weights fit any image_size, since windows do not depend on it. MBConvs, mergings and
/// TinyVitBlocks count as blocks for recomputation. DropPath is not implemented: MobileSAM's rate
/// is 0.
class TinyVit : public MaskImageEncoder {
 public:
  TinyVit(const nn::ParameterScope& scope, const TinyVitConfig& config);

  /// Implements MaskImageEncoder with config.out_channels channels.
  at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const override;
  int64_t num_blocks() const override { return blocks_.size(); }

 private:
  at::Tensor embed(const at::Tensor& pixels) const;
  at::Tensor apply_neck(const at::Tensor& x) const;

  nn::ConvBatchNorm embedding_conv1_, embedding_conv2_;
  RecomputedBlocks blocks_;
  nn::Convolution neck_conv1_;
  nn::LayerNorm neck_norm1_;
  nn::Convolution neck_conv2_;
  nn::LayerNorm neck_norm2_;
};

}  // namespace vlmtrain::models
