#include "models/llava/model.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::llava {

using nn::Component;
using nn::ParameterScope;

namespace {

ParameterScope scope(nn::ParameterStore& store, Component component, std::string_view name) {
  return {store, component, std::string(name)};
}

}  // namespace

Projector::Projector(nn::ParameterStore& store, const Config& config)
    : activation_(config.projector_activation),
      first_(scope(store, Component::kProjector, module_names(config.layout).projector_1), config.vision.hidden_size,
             config.text.hidden_size, config.projector_bias),
      second_(scope(store, Component::kProjector, module_names(config.layout).projector_2), config.text.hidden_size,
              config.text.hidden_size, config.projector_bias) {}

at::Tensor Projector::operator()(const at::Tensor& x) const {
  return second_(activate(activation_, first_(x)));
}

Model::Model(Config config, WeightNames names, bool tower_is_apart, image::Normalization normalization,
             const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      names_(std::move(names)),
      tower_is_apart_(tower_is_apart),
      normalization_(normalization),
      tower_(scope(parameters(), Component::kVisionTower, module_names(config_.layout).vision_tower), config_.vision),
      projector_(parameters(), config_),
      text_(scope(parameters(), Component::kLanguageModel, module_names(config_.layout).language_model), config_.text,
            scope(parameters(), Component::kLanguageModel, module_names(config_.layout).output)) {}

ImageFeatures Model::image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor pixels = image::normalize_pixels(vision.pixel_values, normalization_);
  at::Tensor features = tower_(pixels.to(parameters().options().dtype().toScalarType()), recompute().vision);
  if (config_.drop_first_row) {
    const int64_t rows = config_.vision.rows_per_tile();
    features = features.view({-1, rows, features.size(1)}).narrow(1, 1, rows - 1).flatten(0, 1);
  }
  return {.features = projector_(features), .dense = with_dense ? features : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().language, cache);
}

std::optional<WeightPlace> Model::weight_elsewhere(const std::string& parameter) const {
  const std::string prefix = std::string(module_names(config_.layout).vision_tower) + ".";
  if (!tower_is_apart_ || !parameter.starts_with(prefix)) return std::nullopt;
  if (config_.tower_folder.empty()) {
    throw data_error(
        "the checkpoint has no weights of its vision tower {}, as LLaVA's own code leaves them out; fetch that tower's "
        "checkpoint and write its folder under mm_vision_tower in config.json",
        config_.tower_name);
  }
  return WeightPlace{config_.tower_folder, "vision_model." + parameter.substr(prefix.size())};
}

void Model::complete_config(nlohmann::ordered_json& config) const {
  // The saved weights include the tower's, so its sizes have to come along.
  if (config_.layout == Layout::kOriginal && !config.contains("vision_config")) {
    config["vision_config"] = config_.vision_json;
  }
}

}  // namespace vlmtrain::models::llava
