#include "models/llava/family.h"

#include <algorithm>

#include "models/llava/config.h"
#include "models/llava/processor.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::llava {

namespace {

/// Throws UserError if processor_config.json gives another number of tokens per image than
/// config.json; transformers would use it.
void check_processor_config(const Config& config, const std::filesystem::path& folder) {
  const auto path = folder / "processor_config.json";
  if (!std::filesystem::exists(path)) return;
  const auto processor = io::read_json(path);
  const auto patch_size = io::get_or<int64_t>(processor, "patch_size", config.vision.patch_size, path.string());
  const auto feature_select_strategy = io::get_or<std::string>(
      processor, "vision_feature_select_strategy", config.drops_first_feature ? "default" : "full", path.string());
  // Files without this key are older than it; the number is then that of the tower's class tokens.
  const auto num_additional_tokens = io::get_or<int32_t>(processor, "num_additional_image_tokens",
                                                         config.vision.has_class_token ? 1 : 0, path.string());
  const int64_t side = config.vision.image_size / std::max<int64_t>(patch_size, 1);
  const int64_t tokens = side * side + int64_t{num_additional_tokens} - (feature_select_strategy == "default" ? 1 : 0);
  if (tokens != config.tokens_per_image()) {
    throw data_error(
        "{}: patch_size {}, num_additional_image_tokens {} and vision_feature_select_strategy {} give {} tokens per "
        "image, but the vision tower of config.json produces {} features",
        path.string(), patch_size, num_additional_tokens, feature_select_strategy, tokens, config.tokens_per_image());
  }
}

void check_max_pixels(const Config& config, std::optional<int64_t> max_pixels) {
  const int64_t pixels = config.vision.image_size * config.vision.image_size;
  if (max_pixels && *max_pixels < pixels) {
    throw usage_error("{} is {}, but this model resizes every image to {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, pixels);
  }
}

std::unique_ptr<models::Processor> load_llava_processor(const nlohmann::json& config_json,
                                                        const std::filesystem::path& folder,
                                                        const ProcessorSettings& settings) {
  return load_processor(config_json, folder, settings, /*make_mask_input=*/nullptr);
}

}  // namespace

/// LLaVA-1.5 was trained with Vicuna's template, LLaVA-Med with Mistral's, LLaVA-Interleave with
/// Qwen's.
std::string_view choose_fallback_template(const LlamaConfig& text) {
  switch (text.type) {
    case TextModelType::kLlama:
      return "llava_v1";
    case TextModelType::kMistral:
      return "mistral_instruct";
    case TextModelType::kQwen2:
    case TextModelType::kQwen3:
      return "llava_qwen";
    case TextModelType::kSmolLm3:
      return "chatml";
  }
  throw InternalError("unknown text model");
}

std::unique_ptr<models::Processor> load_processor(
    const nlohmann::json& config_json, const std::filesystem::path& folder, const ProcessorSettings& settings,
    const std::function<MaskInputSettings(const text::Tokenizer&)>& make_mask_input) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  check_max_pixels(config, settings.image_max_pixels);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings, {.fallback = choose_fallback_template(config.text)});
  std::optional<MaskInputSettings> mask_input;
  if (make_mask_input) mask_input = make_mask_input(tokenizer);
  return make_processor(config, load_image_processor_settings(config, folder), std::move(tokenizer),
                        std::move(chat_template), settings, std::move(mask_input));
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize /*size*/, std::optional<int64_t> max_pixels) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  check_max_pixels(config, max_pixels);
  load_image_processor_settings(config, folder);
  return {.tokens = config.tokens_per_image(),
          .image_tokens = config.tokens_per_image(),
          .num_images = 1,
          .pixel_rows = 1,
          .row = {.height = config.vision.image_size, .width = config.vision.image_size}};
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = Config::from_json(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

Family make_family() {
  return {{"llava", "llava_llama", "llava_mistral"},
          build,
          load_llava_processor,
          compute_image_sample_shape,
          get_context_length,
          num_parameters};
}

}  // namespace vlmtrain::models::llava
