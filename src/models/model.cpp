#include "vlmtrain/models/model.h"

#include <ATen/ops/cat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

#include "models/network/vision_passes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/nn/layers/dropout.h"

namespace vlmtrain::models {

namespace {

/// Returns the concatenation along the tokens of one tensor of each part; undefined if no part has
/// it.
template <class GetTensor>
at::Tensor concat_feature_tensors(const std::vector<ImageFeatures>& parts, const GetTensor& get_tensor) {
  std::vector<at::Tensor> tensors;
  for (const auto& part : parts) {
    if (part.features.defined() && get_tensor(part).defined()) tensors.push_back(get_tensor(part));
  }
  return tensors.empty() ? at::Tensor() : at::cat(tensors);
}

}  // namespace

ImageFeatures ImageFeatures::narrow(int64_t first, int64_t count) const {
  ImageFeatures part{.features = features.narrow(0, first, count)};
  for (const auto& deepstack : deepstack_features) part.deepstack_features.push_back(deepstack.narrow(0, first, count));
  return part;
}

ImageFeatures ImageFeatures::concat(const std::vector<ImageFeatures>& parts) {
  ImageFeatures result{
      .features = concat_feature_tensors(parts, [](const auto& part) { return part.features; }),
      .patch_features = concat_feature_tensors(parts, [](const auto& part) { return part.patch_features; })};
  size_t num_deepstack_features = 0;
  for (const auto& part : parts)
    num_deepstack_features = std::max(num_deepstack_features, part.deepstack_features.size());
  for (size_t block = 0; block < num_deepstack_features; ++block) {
    result.deepstack_features.push_back(
        concat_feature_tensors(parts, [block](const auto& part) { return part.deepstack_features.at(block); }));
  }
  return result;
}

using memory::ComponentScope;

int64_t count_vision_passes(const VisionInput& vision, int64_t rows_per_pass) {
  return vision.pixel_values.defined() ? std::ssize(split_vision_passes(vision, rows_per_pass)) : 0;
}

ImageFeatures VisionLanguageModel::get_all_image_features(const VisionInput& vision, bool with_patch_features) const {
  return get_all_image_features(vision, vision_tiles_per_pass_, with_patch_features);
}

ImageFeatures VisionLanguageModel::get_all_image_features(const VisionInput& vision, int64_t rows_per_pass,
                                                          bool with_patch_features) const {
  if (!vision.pixel_values.defined()) return {};
  parameters_.prepare_non_block_parameters();
  const ComponentScope component_scope(memory::Component::kVision);
  std::vector<ImageFeatures> pass_features;
  for (const auto& pass : split_vision_passes(vision, rows_per_pass)) {
    const nn::DropoutScope dropout_scope(pass.dropout_segments);
    pass_features.push_back(get_image_features(pass, with_patch_features));
  }
  return pass_features.size() == 1 ? pass_features.front() : ImageFeatures::concat(pass_features);
}

ModelOutput VisionLanguageModel::forward(const data::MicroBatch& batch, const OutputRequest& request) const {
  const ImageFeatures features =
      get_all_image_features({batch.pixel_values, batch.patch_grids, batch.pixel_dropout_segments, batch.modalities},
                             request.with_patch_features);
  parameters_.prepare_non_block_parameters();
  const ComponentScope language_scope(memory::Component::kLanguage);
  const nn::DropoutScope dropout(batch.text_dropout_segments);
  ModelOutput output = compute_hidden_states(batch, features, request, /*cache=*/nullptr);
  output.patch_features = features.patch_features;
  return output;
}

at::Tensor VisionLanguageModel::compute_mask_logits(const data::MaskBatch& /*masks*/, const at::Tensor& /*hidden*/,
                                                    int64_t /*images_per_pass*/) const {
  throw InternalError("this family predicts no masks");
}

std::optional<ExternalWeight> VisionLanguageModel::find_external_weight(const std::string& /*parameter*/) const {
  return std::nullopt;
}

void VisionLanguageModel::add_saved_settings(nlohmann::ordered_json& /*config*/) const {}

void VisionLanguageModel::add_computed_tables(std::vector<std::pair<std::string, at::Tensor>>& /*weights*/) const {}

bool freeze_parts(VisionLanguageModel& model, const FrozenParts& frozen) {
  bool has_trainable_parameters = false;
  for (const auto& parameter : model.parameters().all()) {
    const bool is_frozen = !nn::is_trainable(parameter.component) ||
                           (model.parameters().lora() && !parameter.is_saved_with_adapter()) ||
                           (parameter.component == nn::Component::kVisionTower && frozen.vision_tower) ||
                           (parameter.component == nn::Component::kProjector && frozen.projector) ||
                           (parameter.component == nn::Component::kLanguageModel && frozen.language_model) ||
                           (parameter.component == nn::Component::kMaskEncoder && frozen.mask_encoder);
    parameter.tensor.set_requires_grad(!is_frozen);
    has_trainable_parameters |= !is_frozen;
  }
  return has_trainable_parameters;
}

}  // namespace vlmtrain::models
