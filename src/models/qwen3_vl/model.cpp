#include "models/qwen3_vl/model.h"

#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen3_vl {

using nn::Component;
using nn::ParameterScope;

namespace {

std::vector<PatchMerger> make_deepstack_mergers(const ParameterScope& scope, const VisionConfig& config) {
  std::vector<PatchMerger> mergers;
  for (int64_t i = 0; i < std::ssize(config.deepstack_blocks); ++i) {
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

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_dense) const {
  const auto layout = qwen2_vl::PatchLayout::make(vision.grids, config_.vision);
  VLMTRAIN_CHECK(std::ssize(layout.positions) == 2 * vision.pixel_values.size(0), "{} patches in grids for {} rows",
                 layout.positions.size() / 2, vision.pixel_values.size(0));
  const auto interpolation =
      PositionInterpolation::make(vision.grids, config_.vision.position_side, config_.vision.merge_size);
  BlockOutputs patches = tower_({vision.pixel_values, normalization_}, layout, interpolation, recompute().vision);
  ImageFeatures result{.features = merger_(patches.last), .dense = with_dense ? patches.last : at::Tensor()};
  patches.last.reset();
  for (size_t i = 0; i < deepstack_mergers_.size(); ++i) {
    result.deepstack_features.push_back(deepstack_mergers_[i](patches.requested[i]));
    patches.requested[i].reset();
  }
  return result;
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().language_recompute(), cache);
}

}  // namespace vlmtrain::models::qwen3_vl
