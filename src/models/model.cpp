#include "vlmtrain/models/model.h"

#include <ATen/ops/cat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/nn/layers/dropout.h"

namespace vlmtrain::models {

namespace {

/// The grids of a pass; a grid of several frames may be spread over passes.
struct PassGrids {
  std::vector<data::PatchGrid> patch_grids;
  int64_t patches = 0;  ///< of all grids
};

/// Fills passes with frames in order until the next frame would exceed `rows_per_pass`.
std::vector<PassGrids> split_grids(const std::vector<data::PatchGrid>& patch_grids, int64_t rows_per_pass) {
  std::vector<PassGrids> pass_grids(1);
  for (const auto& grid : patch_grids) {
    const int64_t patches_per_frame = grid.patches_per_frame();
    // An empty pass takes at least one frame, even if it exceeds the limit.
    for (int64_t remaining = grid.frames; remaining > 0;) {
      if (pass_grids.back().patches > 0 && pass_grids.back().patches + patches_per_frame > rows_per_pass)
        pass_grids.emplace_back();
      const int64_t num_fitting_frames = (rows_per_pass - pass_grids.back().patches) / patches_per_frame;
      const int64_t frames = std::clamp<int64_t>(num_fitting_frames, 1, remaining);
      pass_grids.back().patch_grids.push_back({frames, grid.rows, grid.columns});
      pass_grids.back().patches += frames * patches_per_frame;
      remaining -= frames;
    }
  }
  return pass_grids;
}

/// Assigns each segment to the pass with its rows. REQUIRES: no segment crosses a pass boundary.
void assign_dropout_segments(const std::vector<nn::DropoutSegment>& dropout_segments,
                             std::vector<VisionInput>& passes) {
  auto dropout_segment = dropout_segments.begin();
  for (auto& pass : passes) {
    for (int64_t rows = pass.pixel_values.size(0); rows > 0 && dropout_segment != dropout_segments.end();
         ++dropout_segment) {
      pass.dropout_segments.push_back(*dropout_segment);
      rows -= dropout_segment->row_weight;
    }
  }
}

void assign_modalities(const at::Tensor& modalities, std::vector<VisionInput>& passes) {
  if (!modalities.defined()) return;
  int64_t first = 0;
  for (auto& pass : passes) {
    const int64_t rows = pass.pixel_values.size(0);
    pass.modalities = modalities.narrow(0, first, rows);
    first += rows;
  }
}

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

std::vector<VisionInput> split_vision_passes(const VisionInput& vision, int64_t rows_per_pass) {
  if (rows_per_pass == 0 || vision.pixel_values.size(0) <= rows_per_pass) return {vision};
  std::vector<VisionInput> passes;
  if (vision.patch_grids.empty()) {
    for (const auto& rows : vision.pixel_values.split(rows_per_pass)) passes.push_back({rows, {}});
  } else {
    int64_t first = 0;
    for (auto& pass : split_grids(vision.patch_grids, rows_per_pass)) {
      passes.push_back({vision.pixel_values.narrow(0, first, pass.patches), std::move(pass.patch_grids)});
      first += pass.patches;
    }
  }
  assign_dropout_segments(vision.dropout_segments, passes);
  assign_modalities(vision.modalities, passes);
  return passes;
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
                           (parameter.is_per_layer_table && frozen.per_layer_embeddings) ||
                           (parameter.component == nn::Component::kMaskEncoder && frozen.mask_encoder);
    parameter.tensor.set_requires_grad(!is_frozen);
    has_trainable_parameters |= !is_frozen;
  }
  return has_trainable_parameters;
}

}  // namespace vlmtrain::models
