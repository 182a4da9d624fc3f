#include "models/qwen3_vl/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "models/family.h"
#include "models/qwen2_vl/image_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/layers/activation.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::models::qwen3_vl {

using nn::Component;
using nn::ParameterScope;

namespace {

/// Linear interpolation of a patch's position along one axis of the table.
struct AxisInterpolation {
  std::array<int64_t, 2> indices;  // of the entries next to the position
  std::array<float, 2> weights;
};

/// Returns the interpolation of each of `patches` patches along an axis of `side` entries.
std::vector<AxisInterpolation> interpolate_axis(int64_t patches, int64_t side) {
  std::vector<AxisInterpolation> interpolations;
  interpolations.reserve(static_cast<size_t>(patches));
  for (int64_t i = 0; i < patches; ++i) {
    const float position = static_cast<float>(i * (side - 1)) / static_cast<float>(std::max<int64_t>(patches - 1, 1));
    const float lower = std::floor(position);
    const auto index = static_cast<int64_t>(lower);
    const float fraction = position - lower;
    interpolations.push_back({{index, std::min(index + 1, side - 1)}, {1 - fraction, 1 - std::abs(fraction - 1)}});
  }
  return interpolations;
}

constexpr double kNormEpsilon = 1e-6;  // a constant in transformers' code, not a config key

/// As in VisionTransformer: random positions must be large compared to patches of variance 1.
constexpr double kPositionEmbeddingStd = 0.5;

}  // namespace

PositionInterpolation PositionInterpolation::make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge) {
  int64_t patches = 0;
  for (const auto& grid : grids) patches += grid.patches();
  PositionInterpolation interpolation{std::vector<int64_t>(static_cast<size_t>(kNumInterpolationPoints * patches)),
                                      std::vector<float>(static_cast<size_t>(kNumInterpolationPoints * patches))};
  int64_t patch = 0;
  const auto add = [&](const AxisInterpolation& row, const AxisInterpolation& column) {
    for (size_t point = 0; point < kNumInterpolationPoints; ++point) {
      const size_t y = point / 2, x = point % 2,
                   slot = point * static_cast<size_t>(patches) + static_cast<size_t>(patch);
      interpolation.indices[slot] = row.indices[y] * side + column.indices[x];
      interpolation.weights[slot] = row.weights[y] * column.weights[x];
    }
    ++patch;
  };
  for (const auto& grid : grids) {
    const auto rows = interpolate_axis(grid.rows, side), columns = interpolate_axis(grid.columns, side);
    for (int64_t frame = 0; frame < grid.frames; ++frame) {
      for (int64_t top = 0; top < grid.rows; top += merge) {
        for (int64_t left = 0; left < grid.columns; left += merge) {
          for (int64_t i = 0; i < merge * merge; ++i) {
            add(rows[static_cast<size_t>(top + i / merge)], columns[static_cast<size_t>(left + i % merge)]);
          }
        }
      }
    }
  }
  return interpolation;
}

VisionTower::VisionTower(const nn::ParameterScope& scope, const VisionConfig& config)
    : transformer_(scope, config),
      position_embeddings_(
          (scope / "pos_embed")
              .add_embedding("weight", {config.position_table_side * config.position_table_side, config.hidden_size},
                             {.mean = 0, .deviation = kPositionEmbeddingStd})),
      deepstack_block_indices_(config.deepstack_block_indices) {}

BlockListOutputs VisionTower::operator()(const image::ByteImages& pixels, const qwen2_vl::PatchLayout& layout,
                                         const PositionInterpolation& interpolation, int64_t recomputed_blocks) const {
  const auto device = pixels.bytes.device();
  const at::Tensor indices = memory::copy_to_device(interpolation.indices, device).view({kNumInterpolationPoints, -1});
  const at::Tensor weights =
      memory::copy_to_device(at::tensor(interpolation.weights), device).view({kNumInterpolationPoints, -1});
  const at::Tensor embeddings =
      transformer_.embed(pixels) + nn::sum_weighted_rows(position_embeddings_, indices, weights);
  return transformer_(embeddings, layout, recomputed_blocks, {.output_block_indices = deepstack_block_indices_});
}

PatchMerger::PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config, bool use_postshuffle_norm)
    : merged_hidden_size_(config.hidden_size * config.patches_per_token()),
      use_postshuffle_norm_(use_postshuffle_norm),
      norm_(scope / "norm", use_postshuffle_norm ? merged_hidden_size_ : config.hidden_size, kNormEpsilon),
      fc1_(scope / "linear_fc1", merged_hidden_size_, merged_hidden_size_, true),
      fc2_(scope / "linear_fc2", merged_hidden_size_, config.out_hidden_size, true) {}

at::Tensor PatchMerger::operator()(const at::Tensor& patches) const {
  const auto merge_patches = [this](const at::Tensor& x) { return x.view({-1, merged_hidden_size_}); };
  const nn::LinearInput normed =
      use_postshuffle_norm_ ? norm_.make_linear_input(merge_patches(patches)) : merge_patches(norm_(patches));
  return fc2_(nn::apply_activation(Activation::kGelu, fc1_(normed)));
}

namespace {

std::vector<PatchMerger> make_deepstack_mergers(const ParameterScope& scope, const VisionConfig& config) {
  std::vector<PatchMerger> mergers;
  for (int64_t i = 0; i < std::ssize(config.deepstack_block_indices); ++i) {
    mergers.emplace_back(scope / i, config, /*use_postshuffle_norm=*/true);
  }
  return mergers;
}

}  // namespace

Model::Model(Config config, image::Normalization normalization, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.visual"), config_.vision),
      merger_(ParameterScope(parameters(), Component::kProjector, "model.visual.merger"), config_.vision,
              /*use_postshuffle_norm=*/false),
      deepstack_mergers_(make_deepstack_mergers(
          ParameterScope(parameters(), Component::kProjector, "model.visual.deepstack_merger_list"), config_.vision)),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const auto layout = qwen2_vl::PatchLayout::make(vision.patch_grids, config_.vision);
  VLMTRAIN_CHECK(std::ssize(layout.positions) == 2 * vision.pixel_values.size(0),
                 "the grids have {} patches, but there are {} rows of pixels", layout.positions.size() / 2,
                 vision.pixel_values.size(0));
  const auto interpolation =
      PositionInterpolation::make(vision.patch_grids, config_.vision.position_table_side, config_.vision.merge_size);
  BlockListOutputs patches =
      tower_({vision.pixel_values, normalization_}, layout, interpolation, recompute_block_counts().vision);
  ImageFeatures result{.features = merger_(patches.last_hidden_state),
                       .patch_features = with_patch_features ? patches.last_hidden_state : at::Tensor()};
  patches.last_hidden_state.reset();  // frees memory before the next merger runs
  for (size_t i = 0; i < deepstack_mergers_.size(); ++i) {
    result.deepstack_features.push_back(deepstack_mergers_[i](patches.intermediate_hidden_states[i]));
    patches.intermediate_hidden_states[i].reset();
  }
  return result;
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(
      config, qwen2_vl::read_image_settings(folder, config.vision, std::nullopt).normalization, settings);
}

}  // namespace vlmtrain::models::qwen3_vl
