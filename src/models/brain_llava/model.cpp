#include "models/brain_llava/model.h"

#include "models/brain_llava/pooling.h"

namespace vlmtrain::models::brain_llava {

namespace {

using nn::Component;
using nn::ParameterScope;

ParameterScope place(nn::ParameterStore& store, Component component, const char* name) {
  return {store, component, name};
}

}  // namespace

Model::Model(const Config& config, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(config),
      tower_(place(parameters(), Component::kVisionTower, "vision_tower"), config.vision),
      projector_(place(parameters(), Component::kProjector, "multi_modal_projector.linear_1"),
                 place(parameters(), Component::kProjector, "multi_modal_projector.linear_2"),
                 {.vision = config.vision.blocks.hidden_size,
                  .text = config.text.hidden_size,
                  .activation = config.projector_activation}),
      text_(place(parameters(), Component::kLanguageModel, "language_model.model"), config.text,
            place(parameters(), Component::kLanguageModel, "language_model.lm_head")) {}

ImageFeatures Model::image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor volumes = vision.pixel_values.to(parameters().options().dtype().toScalarType());
  const at::Tensor dense = tower_(volumes, vision.modalities, recompute().vision);
  return {.features = projector_(pool(dense, config_.tokens, tower_.grid_of(volumes))),
          .dense = with_dense ? dense : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().of_language(), cache);
}

}  // namespace vlmtrain::models::brain_llava
