#include "models/gemma3/model.h"

#include <utility>

#include "vlmtrain/nn/linear.h"

namespace vlmtrain::models::gemma3 {

using nn::Component;
using nn::ParameterScope;

Projector::Projector(const ParameterScope& scope, const Config& config)
    : tokens_per_side_(config.tokens_per_side),
      patches_per_token_(config.vision.patches_per_side() / config.tokens_per_side),
      norm_(scope / "mm_soft_emb_norm", config.vision.hidden_size, config.vision.layer_norm_eps,
            nn::NormGain::kOnePlusWeight),
      weight_(scope.parameter("mm_input_projection_weight", {config.vision.hidden_size, config.text.hidden_size},
                              nn::InitialValues::kaiming(config.vision.hidden_size))) {}

at::Tensor Projector::operator()(const at::Tensor& patches) const {
  const at::Tensor pooled =
      patches.view({-1, tokens_per_side_, patches_per_token_, tokens_per_side_, patches_per_token_, patches.size(1)})
          .mean({2, 4})
          .view({-1, patches.size(1)});
  return nn::linear(norm_(pooled), weight_.t(), /*bias=*/{});
}

Model::Model(Config config, StateDictKeyMap key_map, image::Normalization normalization, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      key_map_(std::move(key_map)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_tower"), config_.vision),
      projector_(ParameterScope(parameters(), Component::kProjector, "model.multi_modal_projector"), config_),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            config_.image_tokens(), config_.tie_word_embeddings,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute().vision);
  return {.features = projector_(patches), .dense = with_dense ? patches : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_(batch, image_features, request, recompute().language_recompute(), cache);
}

}  // namespace vlmtrain::models::gemma3
