#include "models/llava/model.h"

#include <algorithm>

#include "models/llava/image_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::llava {

using nn::Component;
using nn::ParameterScope;

namespace {

ParameterScope scope(nn::ParameterStore& store, Component component, std::string_view name) {
  return {store, component, std::string(name)};
}

}  // namespace

Projector::Projector(const ParameterScope& first, const ParameterScope& second, const ProjectorSizes& sizes)
    : activation_(sizes.activation),
      first_(first, sizes.vision, sizes.text, sizes.bias),
      second_(second, sizes.text, sizes.text, sizes.bias) {}

at::Tensor Projector::operator()(const at::Tensor& x) const {
  return second_(activate(activation_, first_(x)));
}

ModelSource ModelSource::read(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  const auto tensors = io::checkpoint_tensor_names(folder);
  const auto tower = std::string(module_names(config.layout).vision_tower) + ".";
  const bool tower_is_apart =
      config.layout == Layout::kOriginal && !tensors.empty() &&
      std::ranges::none_of(tensors, [&](const std::string& name) { return name.starts_with(tower); });
  return {.config = config,
          .names = weight_names(config.layout, tensors),
          .tower_is_apart = tower_is_apart,
          .normalization = image_processor_settings(config, folder).normalization};
}

Model::Model(ModelSource source, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      source_(std::move(source)),
      tower_(scope(parameters(), Component::kVisionTower, module_names(config().layout).vision_tower), config().vision),
      projector_(scope(parameters(), Component::kProjector, module_names(config().layout).projector_1),
                 scope(parameters(), Component::kProjector, module_names(config().layout).projector_2),
                 {.vision = config().vision.hidden_size,
                  .text = config().text.hidden_size,
                  .activation = config().projector_activation,
                  .bias = config().projector_bias}),
      text_(scope(parameters(), Component::kLanguageModel, module_names(config().layout).language_model), config().text,
            scope(parameters(), Component::kLanguageModel, module_names(config().layout).output)) {}

ImageFeatures Model::image_features(const VisionInput& vision, bool with_dense) const {
  at::Tensor features = tower_({vision.pixel_values, source_.normalization}, recomputed_tower_blocks());
  if (config().drop_first_row) {
    const int64_t rows = config().vision.rows_per_tile();
    features = features.view({-1, rows, features.size(1)}).narrow(1, 1, rows - 1).flatten(0, 1);
  }
  return {.features = projector_(features), .dense = with_dense ? features : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().of_language(), cache);
}

std::optional<WeightPlace> Model::weight_elsewhere(const std::string& parameter) const {
  const std::string prefix = std::string(module_names(config().layout).vision_tower) + ".";
  if (!source_.tower_is_apart || !parameter.starts_with(prefix)) return std::nullopt;
  if (config().tower_folder.empty()) {
    throw data_error(
        "the checkpoint has no weights of its vision tower {}, as LLaVA's own code leaves them out; fetch that tower's "
        "checkpoint and write its folder under mm_vision_tower in config.json",
        config().tower_name);
  }
  return WeightPlace{config().tower_folder, "vision_model." + parameter.substr(prefix.size())};
}

void Model::complete_config(nlohmann::ordered_json& json) const {
  // The saved weights include the tower's, so its sizes have to come along.
  if (config().layout == Layout::kOriginal && !json.contains("vision_config")) {
    json["vision_config"] = config().vision_json;
  }
}

}  // namespace vlmtrain::models::llava
