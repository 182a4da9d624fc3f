#include "models/qwen2_vl/model.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "models/family.h"
#include "models/qwen2_vl/image_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Prefixes of parameter names and of the published checkpoints' keys.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kCheckpointKeyPrefixes{
    {{"model.visual.", "visual."}, {"model.language_model.", "model."}}};

}  // namespace

QwenKeyMap QwenKeyMap::detect(std::span<const std::string> tensors) {
  QwenKeyMap key_map;
  key_map.uses_published_keys_ = std::ranges::none_of(
      tensors, [](const std::string& name) { return name.starts_with(kCheckpointKeyPrefixes.back().first); });
  return key_map;
}

std::string QwenKeyMap::to_checkpoint_key(const std::string& parameter) const {
  if (!uses_published_keys_) return parameter;
  for (const auto& [module_prefix, checkpoint_prefix] : kCheckpointKeyPrefixes) {
    if (parameter.starts_with(module_prefix))
      return std::string(checkpoint_prefix) + parameter.substr(module_prefix.size());
  }
  return parameter;
}

using nn::Component;
using nn::ParameterScope;

Model::Model(Config config, QwenKeyMap key_map, image::Normalization normalization,
             const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      key_map_(key_map),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.visual"), config_.vision),
      merger_(ParameterScope(parameters(), Component::kProjector, "model.visual.merger"), config_.vision),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const auto layout = PatchLayout::make(vision.patch_grids, config_.vision);
  VLMTRAIN_CHECK(std::ssize(layout.positions) == 2 * vision.pixel_values.size(0),
                 "the grids have {} patches, but there are {} rows of pixels", layout.positions.size() / 2,
                 vision.pixel_values.size(0));
  const auto device = vision.pixel_values.device();
  // In the tower, the patches of a window are adjacent; its output is put back into input order.
  const bool has_windows = !layout.patch_order.empty();
  const at::Tensor device_patch_order = has_windows ? memory::copy_to_device(layout.patch_order, device) : at::Tensor();
  const at::Tensor embeddings = tower_.embed({vision.pixel_values, normalization_, device_patch_order});
  at::Tensor patches = tower_(embeddings, layout, recompute_block_counts().vision).last_hidden_state;
  const at::Tensor features = merger_(patches);  // [tokens, text hidden]
  if (!with_patch_features) patches.reset();
  const auto restore_token_order = [&](const at::Tensor& token_rows) {
    return has_windows ? token_rows.index_select(0, memory::copy_to_device(layout.inverse_token_order, device))
                       : token_rows;
  };
  ImageFeatures result{.features = restore_token_order(features)};
  // Dense features are per patch; a row of the view has the patches of one token.
  if (with_patch_features)
    result.patch_features = restore_token_order(patches.view({features.size(0), -1})).view_as(patches);
  return result;
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, QwenKeyMap::detect(io::read_checkpoint_tensor_names(folder)),
                                 read_image_settings(folder, config.vision, std::nullopt).normalization, settings);
}

}  // namespace vlmtrain::models::qwen2_vl
