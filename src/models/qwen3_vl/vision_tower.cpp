#include "models/qwen3_vl/vision_tower.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include "vlmtrain/memory/copy.h"
#include "vlmtrain/nn/activation.h"
#include "vlmtrain/nn/weighted_rows.h"

namespace vlmtrain::models::qwen3_vl {

namespace {

constexpr double kNormEpsilon = 1e-6;  // transformers has it in the code, not in the config

/// Random positions have to stand out from patches, as in VisionTransformer.
constexpr double kPositionDeviation = 0.5;

}  // namespace

VisionTower::VisionTower(const nn::ParameterScope& scope, const VisionConfig& config)
    : transformer_(scope, config),
      positions_((scope / "pos_embed")
                     .embedding("weight", {config.position_side * config.position_side, config.hidden_size},
                                {.mean = 0, .deviation = kPositionDeviation})),
      deepstack_blocks_(config.deepstack_blocks) {}

BlockOutputs VisionTower::operator()(const image::BytePixels& pixels, const qwen2_vl::PatchLayout& layout,
                                     const PositionInterpolation& interpolation, int64_t recomputed_blocks) const {
  const auto device = pixels.bytes.device();
  const at::Tensor indices = memory::copy_to_device(interpolation.indices, device).view({kInterpolationPoints, -1});
  const at::Tensor weights =
      memory::copy_to_device(at::tensor(interpolation.weights), device).view({kInterpolationPoints, -1});
  const at::Tensor embedded = transformer_.embed(pixels) + nn::weighted_row_sum(positions_, indices, weights);
  return transformer_(embedded, layout, recomputed_blocks, {.requested = deepstack_blocks_});
}

PatchMerger::PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config, bool use_postshuffle_norm)
    : merged_size_(config.hidden_size * config.patches_per_token()),
      use_postshuffle_norm_(use_postshuffle_norm),
      norm_(scope / "norm", use_postshuffle_norm ? merged_size_ : config.hidden_size, kNormEpsilon),
      first_(scope / "linear_fc1", merged_size_, merged_size_, true),
      second_(scope / "linear_fc2", merged_size_, config.output_size, true) {}

at::Tensor PatchMerger::operator()(const at::Tensor& patches) const {
  const auto merge_patches = [this](const at::Tensor& x) { return x.view({-1, merged_size_}); };
  const nn::LinearInput normed =
      use_postshuffle_norm_ ? norm_.make_linear_input(merge_patches(patches)) : merge_patches(norm_(patches));
  return second_(nn::apply_activation(Activation::kGelu, first_(normed)));
}

}  // namespace vlmtrain::models::qwen3_vl
