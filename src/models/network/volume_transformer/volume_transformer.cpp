#include "models/network/volume_transformer/volume_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::models {

namespace {

using nn::InitialValues;
using nn::ParameterScope;

/// As the towers of pictures have it (vision_transformer.cpp).
constexpr double kVolumePositionDeviation = 0.5;

/// MONAI's name for the one table; a table an axis is this one's, with the axis behind it.
constexpr std::string_view kPositions = "position_embeddings";

std::vector<at::Tensor> make_position_tables(const ParameterScope& scope, const VolumeTransformerConfig& config) {
  const int64_t hidden = config.blocks.hidden_size;
  const VolumeAxes& max_patches = config.max_patches;
  if (config.positions == VolumePositions::kLearned) {
    return {scope.embedding(kPositions, {1, max_patches[0] * max_patches[1] * max_patches[2], hidden},
                            {.mean = 0, .deviation = kVolumePositionDeviation})};
  }
  std::vector<at::Tensor> tables;
  for (size_t axis = 0; axis < max_patches.size(); ++axis) {
    // Three are summed up.
    tables.push_back(scope.embedding(fmt::format("{}_{}", kPositions, axis), {max_patches[axis], hidden},
                                     {.mean = 0, .deviation = kVolumePositionDeviation / std::sqrt(3.0)}));
  }
  return tables;
}

}  // namespace

VolumeTransformer::VolumeTransformer(const ParameterScope& scope, const VolumeTransformerConfig& config)
    : config_(config),
      patch_weight_(
          (scope / "patch_embedding" / "patch_embeddings")
              .parameter(
                  "weight",
                  {config.blocks.hidden_size, config.channels, config.patch_size, config.patch_size, config.patch_size},
                  InitialValues::kaiming(config.channels * config.patch_size * config.patch_size * config.patch_size))),
      patch_bias_((scope / "patch_embedding" / "patch_embeddings")
                      .parameter("bias", {config.blocks.hidden_size}, InitialValues::zeros())),
      positions_(make_position_tables(scope / "patch_embedding", config)),
      class_token_(config.class_token ? scope.parameter("cls_token", {1, 1, config.blocks.hidden_size},
                                                        {.mean = 0, .deviation = kVolumePositionDeviation})
                                      : at::Tensor()),
      // From zero on, so that a tower that was trained without them starts as it is.
      modality_embeddings_(config.modalities.empty()
                               ? at::Tensor()
                               : scope.embedding("modality_embeddings",
                                                 {std::ssize(config.modalities) + 1, config.blocks.hidden_size},
                                                 InitialValues::zeros())),
      blocks_(scope / "blocks", config.blocks.layers, config.blocks, memory::Component::kVision),
      norm_(scope / "norm", config.blocks.hidden_size, config.blocks.layer_norm_eps) {}

VolumeAxes VolumeTransformer::compute_grid(const at::Tensor& volumes) const {
  return config_.compute_grid({volumes.size(2), volumes.size(3), volumes.size(4)});
}

at::Tensor VolumeTransformer::compute_positions(const VolumeAxes& grid) const {
  if (config_.positions == VolumePositions::kLearned) return positions_[0];
  const auto axis_positions = [&](size_t axis) { return positions_[axis].narrow(0, 0, grid[axis]); };
  return (axis_positions(0).unsqueeze(1).unsqueeze(1) + axis_positions(1).unsqueeze(1) + axis_positions(2))
      .flatten(0, 2)
      .unsqueeze(0);
}

at::Tensor VolumeTransformer::embed(const at::Tensor& volumes, const at::Tensor& modalities,
                                    const VolumeAxes& grid) const {
  const int64_t rows = volumes.size(0), channels = config_.channels, patch = config_.patch_size;
  const auto [x, y, z] = grid;
  const at::Tensor patches = volumes.reshape({rows, channels, x, patch, y, patch, z, patch})
                                 .permute({0, 2, 4, 6, 1, 3, 5, 7})
                                 .reshape({rows * x * y * z, channels * patch * patch * patch});
  at::Tensor embedded = nn::linear(patches, patch_weight_.flatten(1), patch_bias_).view({rows, x * y * z, -1});
  embedded = embedded + compute_positions(grid);
  if (modality_embeddings_.defined()) {
    const at::Tensor modality_ids =
        modalities.defined() ? modalities : at::zeros({rows}, volumes.options().dtype(at::kLong));
    embedded = embedded + at::embedding(modality_embeddings_, modality_ids).unsqueeze(1);
  }
  if (class_token_.defined()) embedded = at::cat({class_token_.expand({rows, 1, -1}), embedded}, 1);
  return embedded;
}

at::Tensor VolumeTransformer::operator()(const at::Tensor& volumes, const at::Tensor& modalities,
                                         int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(volumes.dim() == 5 && volumes.size(1) == config_.channels, "rows of {} axes and {} channels for {}",
                 volumes.dim(), volumes.size(1), config_.channels);
  config_.volume_size(VolumeAxes{volumes.size(2), volumes.size(3), volumes.size(4)});
  const at::Tensor embedded = embed(volumes, modalities, compute_grid(volumes));
  const int64_t rows = embedded.size(0), length = embedded.size(1);
  const auto segments = nn::Segments::uniform(rows, length, volumes.device());
  at::Tensor features = norm_(blocks_.run(embedded.flatten(0, 1), recomputed_blocks, segments).last);
  if (!class_token_.defined()) return features;
  return features.view({rows, length, -1}).narrow(1, 1, length - 1).flatten(0, 1);
}

}  // namespace vlmtrain::models
