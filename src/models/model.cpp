#include "vlmtrain/models/model.h"

#include <ATen/ops/cat.h>
#include <nlohmann/json.hpp>

#include <vector>

#include "vlmtrain/memory/place.h"

namespace vlmtrain::models {

using memory::Component;
using memory::InComponent;

at::Tensor VisionLanguageModel::forward(const data::MicroBatch& batch, const at::Tensor& output_positions) const {
  at::Tensor features;
  if (batch.tiles.defined()) {
    const InComponent vision(Component::kVision);
    const int64_t per_pass = vision_tiles_per_pass_;
    if (per_pass == 0 || batch.tiles.size(0) <= per_pass) {
      features = image_features(batch.tiles);
    } else {
      std::vector<at::Tensor> passes;
      for (const auto& tiles : batch.tiles.split(per_pass)) passes.push_back(image_features(tiles));
      features = at::cat(passes);
    }
  }
  const InComponent language(Component::kLanguage);
  return hidden_states(batch, features, output_positions);
}

std::optional<WeightPlace> VisionLanguageModel::weight_elsewhere(const std::string& /*parameter*/) const {
  return std::nullopt;
}

void VisionLanguageModel::complete_config(nlohmann::ordered_json& /*config*/) const {}

bool freeze(VisionLanguageModel& model, const FrozenParts& frozen) {
  bool anything_trained = false;
  for (const auto& parameter : model.parameters().all()) {
    const bool stays = parameter.component == nn::Component::kUnused ||
                       (model.parameters().lora() && !parameter.is_adapter) ||
                       (parameter.component == nn::Component::kVisionTower && frozen.vision_tower) ||
                       (parameter.component == nn::Component::kProjector && frozen.projector) ||
                       (parameter.component == nn::Component::kLanguageModel && frozen.language_model);
    parameter.tensor.set_requires_grad(!stays);
    anything_trained |= !stays;
  }
  return anything_trained;
}

}  // namespace vlmtrain::models
