#include "models/idefics3/model.h"

#include "models/family.h"
#include "models/idefics3/image_processor.h"
#include "models/network/layers.h"

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

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute_block_counts().vision);
  return {.features = projection_(pixel_shuffle(patches, config_.vision.patches_per_side(), config_.scale_factor)),
          .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config, (folder / "config.json").string()),
                                 load_image_processor_settings(folder).normalization, settings);
}

}  // namespace vlmtrain::models::idefics3
