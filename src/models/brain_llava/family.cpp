#include "models/brain_llava/family.h"

#include "models/brain_llava/assembly/assemble.h"
#include "models/brain_llava/config.h"
#include "models/brain_llava/model.h"
#include "models/brain_llava/processor.h"
#include "models/llava/family.h"
#include "models/processing/load_chat_template.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::brain_llava {

namespace {

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config_json, folder), settings);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  Config config = Config::from_json(config_json, folder);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings, {.fallback = llava::choose_fallback_template(config.text)});
  return std::make_unique<Processor>(std::move(config), std::move(tokenizer), std::move(chat_template), settings);
}

data::SampleShape volume_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                               std::optional<VolumeAxes> size, at::ScalarType dtype) {
  const Config config = Config::from_json(config_json, folder);
  return {.tokens = config.tokens_per_volume(),
          .image_tokens = config.tokens_per_volume(),
          .num_media = 1,
          .pixel_rows = 1,
          .row = config.row(size, dtype),
          .num_volumes = 1};
}

ContextLength context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = Config::from_json(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

}  // namespace

Family family() {
  return {.model_types = {kModelType},
          .build = build,
          .load_processor = load_processor,
          .image_shape = nullptr,
          .context_length = context_length,
          .num_parameters = num_parameters,
          .volume_shape = volume_shape,
          .assemble = assemble};
}

}  // namespace vlmtrain::models::brain_llava
