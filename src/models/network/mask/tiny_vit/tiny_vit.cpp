#include "models/network/mask/tiny_vit/tiny_vit.h"

#include <ATen/ops/gelu.h>

#include "models/network/mask/tiny_vit/channel_order.h"
#include "models/network/mask/tiny_vit/convolution_blocks.h"
#include "models/network/mask/tiny_vit/tiny_vit_block.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

namespace {

constexpr double kNeckNormEpsilon = 1e-6;  // of SAM's LayerNorm2d

/// Halves height and width.
nn::ConvolutionShape make_embedding_shape(int64_t in_channels, int64_t out_channels) {
  return {.in_channels = in_channels, .out_channels = out_channels, .kernel = 3, .stride = 2};
}

void add_stage(RecomputedBlocks& blocks, const nn::ParameterScope& scope, const TinyVitConfig& config, size_t index) {
  const TinyVitStage& stage = config.stages[index];
  const bool is_convolutional = index == 0;
  const at::Tensor offsets =
      is_convolutional ? at::Tensor() : make_window_offsets(stage.window, scope.store().options().device());
  for (int64_t i = 0; i < stage.blocks; ++i) {
    const nn::ParameterScope block_scope = scope / "blocks" / i;
    if (is_convolutional) {
      blocks.add(scope.store(),
                 [&] { return MBConv(block_scope, stage.width, config.expanded_channels(stage.width)); });
    } else {
      blocks.add(scope.store(), [&] { return TinyVitBlock(block_scope, config, stage, offsets); });
    }
  }
  if (index + 1 == config.stages.size()) return;
  blocks.add(scope.store(), [&] {
    return PatchMerging(scope / "downsample", stage.width, config.stages[index + 1].width,
                        config.has_downsampling(index) ? 2 : 1);
  });
}

RecomputedBlocks make_tiny_vit_blocks(const nn::ParameterScope& scope, const TinyVitConfig& config) {
  RecomputedBlocks blocks;
  for (size_t i = 0; i < config.stages.size(); ++i) {
    add_stage(blocks, scope / static_cast<int64_t>(i), config, i);
  }
  return blocks;
}

}  // namespace

TinyVit::TinyVit(const nn::ParameterScope& scope, const TinyVitConfig& config)
    : embedding1_(scope / "patch_embed" / "seq" / 0, make_embedding_shape(3, config.stages.front().width / 2)),
      embedding2_(scope / "patch_embed" / "seq" / 2,
                  make_embedding_shape(config.stages.front().width / 2, config.stages.front().width)),
      blocks_(make_tiny_vit_blocks(scope / "layers", config)),
      neck1_(scope / "neck" / 0, {.in_channels = config.stages.back().width, .out_channels = config.out_channels},
             /*bias=*/false),
      neck_norm1_(scope / "neck" / 1, config.out_channels, kNeckNormEpsilon),
      neck2_(scope / "neck" / 2, {.in_channels = config.out_channels, .out_channels = config.out_channels, .kernel = 3},
             /*bias=*/false),
      neck_norm2_(scope / "neck" / 3, config.out_channels, kNeckNormEpsilon) {
  VLMTRAIN_CHECK(config.stride() == kStride, "an encoder of stride {}", config.stride());
}

at::Tensor TinyVit::embed(const at::Tensor& pixels) const {
  return embedding2_(at::gelu(embedding1_(pixels)));
}

at::Tensor TinyVit::neck(const at::Tensor& x) const {
  const at::Tensor projected = neck_norm1_(to_channels_last(neck1_(x)));
  return neck_norm2_(to_channels_last(neck2_(to_channels_first(projected)))).flatten(0, 2);
}

at::Tensor TinyVit::operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.size(2) == pixels.size(3) && pixels.size(2) % kStride == 0,
                 "pictures of {}×{} for a mask encoder of stride {}", pixels.size(2), pixels.size(3), kStride);
  return neck(blocks_.run(embed(pixels), recomputed_blocks));
}

}  // namespace vlmtrain::models
