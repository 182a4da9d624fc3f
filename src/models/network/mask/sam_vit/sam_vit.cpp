#include "models/network/mask/sam_vit/sam_vit.h"

#include <ATen/TensorOperators.h>

#include "models/network/mask/sam_vit/sam_vit_block.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/linear.h"

namespace vlmtrain::models {

namespace {

using nn::InitialValues;
using nn::ParameterScope;

constexpr double kSamPositionDeviation = 0.5;  // as in VisionTransformer: patches have variance 1
constexpr double kNeckEpsilon = 1e-6;          // LayerNorm2d's

RecomputedBlocks make_blocks(const ParameterScope& scope, const SamVitConfig& config) {
  RecomputedBlocks blocks;
  for (int64_t i = 0; i < config.layers; ++i) {
    blocks.add(scope.store(), [&] { return SamVitBlock(scope / i, config, config.get_window_size(i)); });
  }
  return blocks;
}

}  // namespace

SamVit::SamVit(const ParameterScope& scope, const SamVitConfig& config)
    : config_(config),
      patch_weight_((scope / "patch_embed" / "projection")
                        .parameter("weight", {config.hidden_size, 3, config.patch_size, config.patch_size},
                                   InitialValues::kaiming(3 * config.patch_size * config.patch_size))),
      patch_bias_(
          (scope / "patch_embed" / "projection").parameter("bias", {config.hidden_size}, InitialValues::zeros())),
      pos_embed_(config.absolute_positions
                     ? scope.parameter("pos_embed", {1, config.side(), config.side(), config.hidden_size},
                                       {.mean = 0, .deviation = kSamPositionDeviation})
                     : at::Tensor()),
      blocks_(make_blocks(scope / "layers", config)),
      neck_weight_((scope / "neck" / "conv1")
                       .parameter("weight", {config.output_channels, config.hidden_size, 1, 1},
                                  InitialValues::kaiming(config.hidden_size))),
      neck_norm1_(scope / "neck" / "layer_norm1", config.output_channels, kNeckEpsilon),
      neck_convolution_(scope / "neck" / "conv2",
                        {.in_channels = config.output_channels, .out_channels = config.output_channels, .kernel = 3},
                        /*bias=*/false),
      neck_norm2_(scope / "neck" / "layer_norm2", config.output_channels, kNeckEpsilon) {}

at::Tensor SamVit::embed(const at::Tensor& pixels) const {
  const int64_t images = pixels.size(0), side = config_.side(), patch = config_.patch_size;
  const at::Tensor patches = pixels.view({images, 3, side, patch, side, patch})
                                 .permute({0, 2, 4, 1, 3, 5})
                                 .reshape({images * side * side, 3 * patch * patch});
  at::Tensor embedded = nn::linear(patches, patch_weight_.flatten(1), patch_bias_);
  if (!pos_embed_.defined()) return embedded;
  return (embedded.view({images, side, side, -1}) + pos_embed_).flatten(0, 2);
}

at::Tensor SamVit::neck(const at::Tensor& x) const {
  const int64_t side = config_.side(), channels = config_.output_channels;
  const at::Tensor projected = neck_norm1_(nn::linear(x, neck_weight_.flatten(1), {}));
  const at::Tensor convolved = neck_convolution_(projected.view({-1, side, side, channels}).permute({0, 3, 1, 2}));
  return neck_norm2_(convolved.permute({0, 2, 3, 1}).reshape({-1, channels}));
}

at::Tensor SamVit::operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.size(2) == config_.image_size && pixels.size(3) == config_.image_size,
                 "pictures of {}×{} for an encoder of {}", pixels.size(2), pixels.size(3), config_.image_size);
  return neck(blocks_.run(embed(pixels), recomputed_blocks));
}

}  // namespace vlmtrain::models
