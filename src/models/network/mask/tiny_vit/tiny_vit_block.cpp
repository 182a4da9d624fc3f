#include "models/network/mask/tiny_vit/tiny_vit_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>

#include "models/network/block_list.h"
#include "models/network/mask/tiny_vit/channel_order.h"

namespace vlmtrain::models {

namespace {

constexpr double kMlpNormEpsilon = 1e-5;  // torch.nn.LayerNorm's

}  // namespace

TinyVitBlock::TinyVitBlock(const nn::ParameterScope& scope, const TinyVitConfig& config, const TinyVitStage& stage,
                           const at::Tensor& offsets)
    : window_(stage.window),
      attention_(scope / "attn", stage, offsets, residual_branch_gain(config.blocks())),
      norm_(scope / "mlp" / "norm", stage.width, kMlpNormEpsilon),
      fc1_(scope / "mlp" / "fc1", stage.width, config.mlp_features(stage.width), true),
      fc2_(scope / "mlp" / "fc2", config.mlp_features(stage.width), stage.width, true,
           residual_branch_gain(config.blocks())),
      local_convolution_(scope / "local_conv", {.in_channels = stage.width,
                                                .out_channels = stage.width,
                                                .kernel = config.local_conv_size,
                                                .groups = stage.width}) {}

at::Tensor TinyVitBlock::mlp(const at::Tensor& x) const {
  return fc2_(at::gelu(fc1_(norm_(x).flatten(0, 2)))).view(x.sizes());
}

at::Tensor TinyVitBlock::operator()(const at::Tensor& x) const {
  const at::Tensor positions = to_channels_last(x);
  const at::Tensor attended =
      positions + window_unpartition(attention_(window_partition(positions, window_)), window_, positions.sizes());
  const at::Tensor mixed = to_channels_last(local_convolution_(to_channels_first(attended)));
  return to_channels_first(mixed + mlp(mixed));
}

}  // namespace vlmtrain::models
