#include "models/family.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <vector>

#include "models/brain_llava/config.h"
#include "models/llava/family.h"
#include "models/processing/chat_template.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models::brain_llava {

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
