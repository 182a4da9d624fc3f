#include "models/idefics3/model.h"

#include "models/network/pixel_shuffle.h"

namespace vlmtrain::models::idefics3 {

using nn::Component;
using nn::ParameterScope;

Model::Model(Config config, image::Normalization normalization, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_model"), config_.vision),
      projection_(ParameterScope(parameters(), Component::kProjector, "model.connector.modality_projection.proj"),
                  config_.vision.hidden_size * config_.scale_factor * config_.scale_factor, config_.text.hidden_size,
                  /*bias=*/false),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.text_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute().vision);
  return {.features = projection_(pixel_shuffle(patches, config_.vision.patches_per_side(), config_.scale_factor)),
          .dense = with_dense ? patches : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().language_recompute(), cache);
}

}  // namespace vlmtrain::models::idefics3
