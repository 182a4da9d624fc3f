#include "models/brain_llava/model.h"

#include "models/brain_llava/pooling.h"

namespace vlmtrain::models::brain_llava {

namespace {

using nn::Component;
using nn::ParameterScope;

ParameterScope make_scope(nn::ParameterStore& store, Component component, const char* name) {
  return {store, component, name};
}

}  // namespace

Model::Model(const Config& config, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(config),
      tower_(make_scope(parameters(), Component::kVisionTower, "vision_tower"), config.vision),
      projector_(make_scope(parameters(), Component::kProjector, "multi_modal_projector.linear_1"),
                 make_scope(parameters(), Component::kProjector, "multi_modal_projector.linear_2"),
                 {.vision = config.vision.blocks.hidden_size,
                  .text = config.text.hidden_size,
                  .activation = config.projector_activation}),
      text_(make_scope(parameters(), Component::kLanguageModel, "language_model.model"), config.text,
            make_scope(parameters(), Component::kLanguageModel, "language_model.lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor volumes = vision.pixel_values.to(parameters().options().dtype().toScalarType());
  const at::Tensor dense = tower_(volumes, vision.modalities, recompute().vision);
  return {.features = projector_(pool(dense, config_.tokens, tower_.compute_grid(volumes))),
          .dense = with_dense ? dense : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().language_recompute(), cache);
}

}  // namespace vlmtrain::models::brain_llava
