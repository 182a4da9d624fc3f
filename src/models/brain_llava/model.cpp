#include "models/brain_llava/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/div.h>

#include <string_view>

#include "models/family.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::brain_llava {

namespace {

/// Returns the averaging matrix of one axis, fp32 [tokens, patches]. As in adaptive_avg_pool3d,
/// token t is the mean of the patches floor(t · patches / tokens) up to, but without,
/// ceil((t + 1) · patches / tokens). The matrix is created on the features' device, which avoids a
/// copy.
at::Tensor make_axis_pooling_matrix(int64_t tokens, int64_t patches, const at::TensorOptions& options) {
  constexpr std::string_view kFloorRoundingMode = "floor";
  const auto index_options = options.dtype(at::kLong);
  const at::Tensor token_indices = at::arange(tokens, index_options).unsqueeze(1),
                   patch_indices = at::arange(patches, index_options);
  const at::Tensor first = at::div(token_indices * patches, tokens, kFloorRoundingMode);
  const at::Tensor end = at::div((token_indices + 1) * patches + (tokens - 1), tokens, kFloorRoundingMode);
  return patch_indices.ge(first).to(at::kFloat) * patch_indices.lt(end).to(at::kFloat) / (end - first);
}

using nn::Component;
using nn::ParameterScope;

ParameterScope make_parameter_scope(nn::ParameterStore& store, Component component, const char* name) {
  return {store, component, name};
}

}  // namespace

at::Tensor make_pooling_matrix(const VolumeShape& tokens, const VolumeShape& patches,
                               const at::TensorOptions& options) {
  const auto make_axis_matrix = [&](size_t axis) {
    return make_axis_pooling_matrix(tokens[axis], patches[axis], options);
  };
  // The weight of a patch is the product of its weights along the axes.
  const at::Tensor x = make_axis_matrix(0).view({tokens[0], 1, 1, patches[0], 1, 1});
  const at::Tensor y = make_axis_matrix(1).view({tokens[1], 1, 1, patches[1], 1});
  const at::Tensor z = make_axis_matrix(2).view({tokens[2], 1, 1, patches[2]});
  return (x * y * z).flatten(3, 5).flatten(0, 2).to(options.dtype());
}

at::Tensor pool_patches(const at::Tensor& features, const VolumeShape& tokens, const VolumeShape& patches) {
  const int64_t num_patches = patches[0] * patches[1] * patches[2];
  VLMTRAIN_CHECK(features.size(0) % num_patches == 0, "{} features for volumes of {} patches", features.size(0),
                 num_patches);
  const at::Tensor volumes = features.view({-1, num_patches, features.size(1)});
  const at::Tensor pooling_matrix = make_pooling_matrix(tokens, patches, features.options());
  return at::bmm(pooling_matrix.expand({volumes.size(0), -1, -1}), volumes).flatten(0, 1);
}

Model::Model(const Config& config, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(config),
      tower_(make_parameter_scope(parameters(), Component::kVisionTower, "vision_tower"), config.vision),
      projector_(make_parameter_scope(parameters(), Component::kProjector, "multi_modal_projector.linear_1"),
                 make_parameter_scope(parameters(), Component::kProjector, "multi_modal_projector.linear_2"),
                 {.vision = config.vision.block_config.hidden_size,
                  .text = config.text.hidden_size,
                  .activation = config.projector_activation}),
      text_(make_parameter_scope(parameters(), Component::kLanguageModel, "language_model.model"), config.text,
            make_parameter_scope(parameters(), Component::kLanguageModel, "language_model.lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor volumes = vision.pixel_values.to(parameters().options().dtype().toScalarType());
  const at::Tensor patch_features = tower_(volumes, vision.modalities, recompute_block_counts().vision);
  return {.features = projector_(pool_patches(patch_features, config_.tokens, tower_.compute_grid(volumes))),
          .patch_features = with_patch_features ? patch_features : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config_json, folder), settings);
}

}  // namespace vlmtrain::models::brain_llava
