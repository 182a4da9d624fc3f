#include "models/internvl/model.h"

#include "models/network/pixel_shuffle.h"
#include "vlmtrain/nn/activation.h"

namespace vlmtrain::models::internvl {

using nn::Component;
using nn::ParameterScope;

namespace {

int64_t shuffled_size(const Config& config) {
  return config.vision.hidden_size * config.scale_factor * config.scale_factor;
}

constexpr double kProjectorNormEps = 1e-5;  // torch.nn.LayerNorm's default

}  // namespace

Projector::Projector(const ParameterScope& scope, const Config& config)
    : side_(config.vision.patches_per_side()),
      scale_factor_(config.scale_factor),
      activation_(config.projector_activation),
      norm_(scope / "layer_norm", shuffled_size(config), kProjectorNormEps),
      first_(scope / "linear_1", shuffled_size(config), config.text.hidden_size, /*bias=*/true),
      second_(scope / "linear_2", config.text.hidden_size, config.text.hidden_size, /*bias=*/true) {}

at::Tensor Projector::operator()(const at::Tensor& patches) const {
  const at::Tensor shuffled = pixel_shuffle(patches, side_, scale_factor_);
  return second_(nn::apply_activation(activation_, first_(norm_.make_linear_input(shuffled))));
}

Model::Model(Config config, StateDictKeyMap key_map, image::Normalization normalization,
             const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      key_map_(std::move(key_map)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_tower"), config_.vision),
      projector_(ParameterScope(parameters(), Component::kProjector, "model.multi_modal_projector"), config_),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute().vision);
  return {.features = projector_(patches), .dense = with_dense ? patches : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().language_recompute(), cache);
}

}  // namespace vlmtrain::models::internvl
