#include "vlmtrain/models/model.h"

#include <nlohmann/json.hpp>

#include <vector>

#include "models/network/vision_passes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/dropout.h"

namespace vlmtrain::models {

using memory::Component;
using memory::InComponent;

int64_t passes_of(const VisionInput& vision, int64_t rows_per_pass) {
  return vision.pixel_values.defined() ? std::ssize(vision_passes(vision, rows_per_pass)) : 0;
}

ImageFeatures VisionLanguageModel::all_image_features(const VisionInput& vision, bool with_dense) const {
  return all_image_features(vision, vision_tiles_per_pass_, with_dense);
}

ImageFeatures VisionLanguageModel::all_image_features(const VisionInput& vision, int64_t rows_per_pass,
                                                      bool with_dense) const {
  if (!vision.pixel_values.defined()) return {};
  parameters_.use_outside_of_blocks();
  const InComponent component(Component::kVision);
  std::vector<ImageFeatures> passes;
  for (const auto& pass : vision_passes(vision, rows_per_pass)) {
    const nn::DropoutScope dropout(pass.units);
    passes.push_back(image_features(pass, with_dense));
  }
  return passes.size() == 1 ? passes.front() : ImageFeatures::join(passes);
}

ModelOutput VisionLanguageModel::forward(const data::MicroBatch& batch, const OutputRequest& request) const {
  const ImageFeatures features = all_image_features(
      {batch.pixel_values, batch.grids, batch.pixel_units, batch.modalities}, request.dense_features);
  parameters_.use_outside_of_blocks();
  const InComponent language(Component::kLanguage);
  const nn::DropoutScope dropout(batch.sample_units);
  ModelOutput output = hidden_states(batch, features, request, /*cache=*/nullptr);
  output.dense_features = features.dense;
  return output;
}

at::Tensor VisionLanguageModel::mask_logits(const data::MaskBatch& /*masks*/, const at::Tensor& /*hidden*/,
                                            int64_t /*pictures_per_pass*/) const {
  throw InternalError("masks of a family that draws none");
}

std::optional<WeightPlace> VisionLanguageModel::weight_elsewhere(const std::string& /*parameter*/) const {
  return std::nullopt;
}

void VisionLanguageModel::complete_config(nlohmann::ordered_json& /*config*/) const {}

void VisionLanguageModel::complete_weights(std::vector<std::pair<std::string, at::Tensor>>& /*weights*/) const {}

bool freeze(VisionLanguageModel& model, const FrozenParts& frozen) {
  bool anything_trained = false;
  for (const auto& parameter : model.parameters().all()) {
    const bool stays = !nn::is_trainable(parameter.component) ||
                       (model.parameters().lora() && !parameter.goes_with_adapter()) ||
                       (parameter.component == nn::Component::kVisionTower && frozen.vision_tower) ||
                       (parameter.component == nn::Component::kProjector && frozen.projector) ||
                       (parameter.component == nn::Component::kLanguageModel && frozen.language_model) ||
                       (parameter.component == nn::Component::kMaskEncoder && frozen.mask_encoder);
    parameter.tensor.set_requires_grad(!stays);
    anything_trained |= !stays;
  }
  return anything_trained;
}

}  // namespace vlmtrain::models
