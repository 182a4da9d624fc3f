#include "models/llava/model.h"

#include <algorithm>
#include <vector>

#include "models/family.h"
#include "models/llava/processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::llava {

namespace {

const std::vector<PrefixAliases>& get_hugging_face_key_aliases() {
  static const std::vector<PrefixAliases> table{
      {"model.vision_tower.",
       {"vision_tower.vision_model.", "model.vision_tower.vision_model.", "vision_tower.", "model.vision_tower."}},
      {"model.multi_modal_projector.", {"multi_modal_projector.", "model.multi_modal_projector."}},
      {"model.language_model.", {"language_model.model.", "model.language_model."}},
      {"lm_head.", {"language_model.lm_head.", "lm_head."}},
  };
  return table;
}

}  // namespace

const ModuleNames& get_module_names(CheckpointFormat checkpoint_format) {
  static constexpr ModuleNames kHuggingFace{"model.vision_tower", "model.multi_modal_projector.linear_1",
                                            "model.multi_modal_projector.linear_2", "model.language_model", "lm_head"};
  static constexpr ModuleNames kOriginal{"model.vision_tower.vision_tower.vision_model", "model.mm_projector.0",
                                         "model.mm_projector.2", "model", "lm_head"};
  return checkpoint_format == CheckpointFormat::kHuggingFace ? kHuggingFace : kOriginal;
}

StateDictKeyMap make_key_map(CheckpointFormat checkpoint_format, std::span<const std::string> tensors) {
  return checkpoint_format == CheckpointFormat::kOriginal
             ? StateDictKeyMap()
             : StateDictKeyMap::detect(get_hugging_face_key_aliases(), tensors);
}

using nn::Component;
using nn::ParameterScope;

namespace {

ParameterScope make_parameter_scope(nn::ParameterStore& store, Component component, std::string_view name) {
  return {store, component, std::string(name)};
}

}  // namespace

Projector::Projector(const ParameterScope& first, const ParameterScope& second, const ProjectorConfig& config)
    : activation_(config.activation),
      linear_1_(first, config.vision, config.text, config.bias),
      linear_2_(second, config.text, config.text, config.bias) {}

at::Tensor Projector::operator()(const at::Tensor& x) const {
  return linear_2_(activate(activation_, linear_1_(x)));
}

ModelSpec ModelSpec::read(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  const auto tensors = io::read_checkpoint_tensor_names(folder);
  const auto tower_prefix = std::string(get_module_names(config.checkpoint_format).vision_tower) + ".";
  const bool has_external_tower =
      config.checkpoint_format == CheckpointFormat::kOriginal && !tensors.empty() &&
      std::ranges::none_of(tensors, [&](const std::string& name) { return name.starts_with(tower_prefix); });
  return {.config = config,
          .key_map = make_key_map(config.checkpoint_format, tensors),
          .has_external_tower = has_external_tower,
          .normalization = load_image_processor_settings(config, folder).normalization};
}

Model::Model(ModelSpec spec, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      spec_(std::move(spec)),
      tower_(make_parameter_scope(parameters(), Component::kVisionTower,
                                  get_module_names(config().checkpoint_format).vision_tower),
             config().vision),
      projector_(make_parameter_scope(parameters(), Component::kProjector,
                                      get_module_names(config().checkpoint_format).projector_1),
                 make_parameter_scope(parameters(), Component::kProjector,
                                      get_module_names(config().checkpoint_format).projector_2),
                 {.vision = config().vision.hidden_size,
                  .text = config().text.hidden_size,
                  .activation = config().projector_activation,
                  .bias = config().projector_bias}),
      text_(make_parameter_scope(parameters(), Component::kLanguageModel,
                                 get_module_names(config().checkpoint_format).language_model),
            config().text,
            make_parameter_scope(parameters(), Component::kLanguageModel,
                                 get_module_names(config().checkpoint_format).output)) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  at::Tensor features = tower_({vision.pixel_values, spec_.normalization}, count_recomputed_tower_blocks());
  if (config().drops_first_feature) {
    // [tiles · rows, hidden] → [tiles · (rows − 1), hidden]
    const int64_t rows = config().vision.num_positions();
    features = features.view({-1, rows, features.size(1)}).narrow(1, 1, rows - 1).flatten(0, 1);
  }
  return {.features = projector_(features), .patch_features = with_patch_features ? features : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::optional<ExternalWeight> Model::find_external_weight(const std::string& parameter) const {
  const std::string prefix = std::string(get_module_names(config().checkpoint_format).vision_tower) + ".";
  if (!spec_.has_external_tower || !parameter.starts_with(prefix)) return std::nullopt;
  if (config().tower_folder.empty()) {
    throw data_error(
        "the checkpoint has no weights of its vision tower {}, since LLaVA's original code omits them; download the "
        "tower's checkpoint and set mm_vision_tower in config.json to its folder",
        config().tower_name);
  }
  return ExternalWeight{config().tower_folder, "vision_model." + parameter.substr(prefix.size())};
}

void Model::add_saved_settings(nlohmann::ordered_json& json) const {
  // Saved weights include the tower, so its sizes are saved, too.
  if (config().checkpoint_format == CheckpointFormat::kOriginal && !json.contains("vision_config")) {
    json["vision_config"] = config().vision_config;
  }
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(ModelSpec::read(config_json, folder), settings);
}

}  // namespace vlmtrain::models::llava
