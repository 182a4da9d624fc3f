#include "models/brain_llava/family.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/div.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/llava/family.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models::brain_llava {

namespace {

constexpr int64_t kMaxVolumes = 4096;  // per sample; rejects only damaged configs

/// Returns true if a volume of `size` voxels has at least one patch per token along each axis.
bool has_enough_patches(const Config& config, const VolumeShape& size) {
  const VolumeShape grid = config.vision.compute_grid(size);
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    if (grid[axis] < config.tokens[axis]) return false;
  }
  return true;
}

nlohmann::json get_required_section(const nlohmann::json& config, const char* key, const std::string& source) {
  auto section = get_section(config, key, source);
  if (section.is_null()) throw config_error("{}: has no section {}", source, key);
  return section;
}

}  // namespace

Config Config::from_json(const nlohmann::json& json, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  Config config;
  const auto vision = get_required_section(json, "vision_config", source);
  const auto type = io::get_or<std::string>(vision, "model_type", std::string(kTowerType), source);
  if (type != kTowerType) {
    throw data_error("{} (vision_config): vision tower {} is not supported in brain_llava; supported: {}", source, type,
                     kTowerType);
  }
  config.vision = VolumeTransformerConfig::from_json(vision, source + " (vision_config)");
  if (const auto projector = get_section(json, "projector_config", source); !projector.is_null()) {
    const std::string projector_source = source + " (projector_config)";
    config.tokens = read_volume_shape(projector, "tokens", config.tokens, kMaxImageSide, projector_source);
    config.projector_activation = parse_activation(
        io::get_or<std::string>(projector, "hidden_act", "gelu", projector_source), "hidden_act", projector_source);
  }
  config.text = LlamaConfig::from_json(get_required_section(json, "text_config", source), source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json, "tie_word_embeddings", false, source);
  config.image_token_id = io::get<int64_t>(json, "image_token_id", source);
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    throw config_error("{}: image_token_id {} is not in the vocabulary of {}", source, config.image_token_id,
                       config.text.vocab_size);
  }
  if (json.contains("max_volumes")) config.max_volumes = read_size(json, "max_volumes", 1, kMaxVolumes, source);
  if (!has_enough_patches(config, config.vision.image_size)) {
    throw config_error("{}: projector_config.tokens {} exceeds the {} patches of a volume of image_size {}", source,
                       format_volume_shape(config.tokens),
                       format_volume_shape(config.vision.compute_grid(config.vision.image_size)),
                       format_volume_shape(config.vision.image_size));
  }
  return config;
}

data::PixelRowShape Config::make_pixel_row_shape(const std::optional<VolumeShape>& requested,
                                                 at::ScalarType dtype) const {
  const VolumeShape size = resolve_volume_size(requested);
  return {.dtype = dtype, .channels = vision.channels, .depth = size[0], .height = size[1], .width = size[2]};
}

VolumeShape Config::resolve_volume_size(const std::optional<VolumeShape>& requested) const {
  const VolumeShape size = vision.resolve_volume_size(requested);
  if (!has_enough_patches(*this, size)) {
    throw usage_error("{}: {} gives {} patches, fewer than the projector's {} tokens per volume; give at least {}",
                      keys::data::kVolumeSize, format_volume_shape(size),
                      format_volume_shape(vision.compute_grid(size)), format_volume_shape(tokens),
                      format_volume_shape({tokens[0] * vision.patch_size, tokens[1] * vision.patch_size,
                                           tokens[2] * vision.patch_size}));
  }
  return size;
}

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
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config_json, folder), settings);
}

namespace {

image::VolumeSettings make_volume_settings(const Config& config, const data::VolumeOptions& options) {
  if (options.input_form == data::VolumeInputForm::kSlices) {
    throw usage_error(
        "{}: slices are images, and brain_llava supports only volumes; set volume, or use a model of a family that "
        "supports images",
        keys::data::kVolumeAs);
  }
  return options.make_volume_settings(config.resolve_volume_size(options.size));
}

/// Returns the letters and digits of a name in lower case, so that "T1-w" equals "t1w".
std::string normalize_modality_name(const std::string& modality) {
  std::string normalized;
  for (const unsigned char c : modality) {
    if (std::isalnum(c) != 0) normalized.push_back(static_cast<char>(std::tolower(c)));
  }
  return normalized;
}

/// Converts a volume to one row of the tower's input, a 4D series to one row per used frame. All
/// rows have the same number of image tokens.
class Reader final : public VolumeReader {
 public:
  Reader(const Config& config, const image::VolumeSettings& settings) : config_(config), settings_(settings) {}

  std::optional<int64_t> max_volumes() const override { return config_.max_volumes; }
  MediaLayout lay_out(const image::VolumeInfo& info, const std::string& modality) const override {
    MediaLayout layout{.text = {}, .pixel_rows = image::count_volumes(info, settings_)};
    layout.modality = find_modality_id(modality);
    layout.decode_bytes = image::estimate_volume_reading_memory(info, settings_);
    for (int64_t i = 0; i < layout.pixel_rows * config_.tokens_per_volume(); ++i)
      layout.text += text::kImagePlaceholder;
    return layout;
  }
  at::Tensor preprocess(const io::MediaRef& file) const override { return image::read_volume(file, settings_); }

 private:
  /// Returns the id of a modality that a record names; 0 if unknown.
  int64_t find_modality_id(const std::string& modality) const {
    const auto& modalities = config_.vision.modalities;
    if (modalities.empty() || modality.empty()) return 0;
    const auto it = std::ranges::find(modalities, normalize_modality_name(modality), normalize_modality_name);
    if (it != modalities.end()) return it - modalities.begin() + 1;
    throw data_error(
        "the modality {} is not one of the model's: {}; rename it, remove it, or add it to modalities in config.json "
        "before training",
        make_excerpt(modality), fmt::join(modalities, ", "));
  }

  Config config_;
  image::VolumeSettings settings_;
};

/// Throws UserError: kUsage for data.volume settings that the model does not support, kBadData for
/// a tokenizer that does not match config.json.
std::unique_ptr<models::Processor> make_processor(const Config& config, text::Tokenizer tokenizer,
                                                  text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  auto encoder = std::make_unique<ChatEncoder>(std::move(tokenizer), std::move(chat_template),
                                               ChatEncoderSettings{.image_token_id = config.image_token_id});
  auto reader = std::make_unique<Reader>(config, make_volume_settings(config, settings.volume));
  check_vocabulary(encoder->tokenizer(), config.text.vocab_size);
  check_token_id(encoder->tokenizer(), text::kImagePlaceholder, "image_token_id", config.image_token_id);
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{.encoder = std::move(encoder),
                     .readers = {.volumes = std::move(reader)},
                     .input = {.row = config.make_pixel_row_shape(settings.volume.size, settings.volume.dtype),
                               .image_tokens = config.tokens_per_volume()}},
      settings);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings, {.fallback = llava::choose_fallback_template(config.text)});
  return make_processor(config, std::move(tokenizer), std::move(chat_template), settings);
}

data::SampleShape compute_volume_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                              std::optional<VolumeShape> size, at::ScalarType dtype) {
  const Config config = Config::from_json(config_json, folder);
  return {.tokens = config.tokens_per_volume(),
          .image_tokens = config.tokens_per_volume(),
          .pixel_rows = 1,
          .row = config.make_pixel_row_shape(size, dtype),
          .num_volumes = 1};
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = Config::from_json(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

}  // namespace

Family make_family() {
  return {.model_types = {kModelType},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = nullptr,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .compute_volume_sample_shape = compute_volume_sample_shape,
          .assemble_checkpoint = assemble_checkpoint};
}

}  // namespace vlmtrain::models::brain_llava
