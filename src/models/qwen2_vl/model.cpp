#include "models/qwen2_vl/model.h"

#include "models/qwen2_vl/host_indices.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

using nn::Component;
using nn::ParameterScope;

Model::Model(Config config, WeightNames names, image::Normalization normalization,
             const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      names_(names),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.visual"), config_.vision),
      merger_(ParameterScope(parameters(), Component::kProjector, "model.visual.merger"), config_.vision),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

at::Tensor Model::image_features(const VisionInput& vision) const {
  const auto layout = PatchLayout::of(vision.grids, config_.vision);
  VLMTRAIN_CHECK(std::ssize(layout.positions) == 2 * vision.tiles.size(0), "{} patches in grids for {} tiles",
                 layout.positions.size() / 2, vision.tiles.size(0));
  const auto device = vision.tiles.device();
  const bool has_windows = !layout.patch_order.empty();
  const at::Tensor tiles =
      has_windows ? vision.tiles.index_select(0, host_indices(layout.patch_order, device)) : vision.tiles;
  const at::Tensor pixels = image::normalize_pixels(tiles, normalization_);
  const at::Tensor features =
      merger_(tower_(pixels.to(parameters().options().dtype().toScalarType()), layout, recompute().vision));
  return has_windows ? features.index_select(0, host_indices(layout.token_places, device)) : features;
}

at::Tensor Model::hidden_states(const data::MicroBatch& batch, const at::Tensor& image_features,
                                const at::Tensor& output_positions, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, output_positions, recompute().language, cache);
}

}  // namespace vlmtrain::models::qwen2_vl
