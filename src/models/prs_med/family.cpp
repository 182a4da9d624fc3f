#include "models/family.h"

#include "models/llava/family.h"
#include "models/processing/chat_encoder.h"
#include "models/prs_med/config.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::prs_med {

namespace {

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return llava::load_processor(config.llava_config, folder, settings, [&](const text::Tokenizer& tokenizer) {
    const auto token = tokenizer.token_to_id(config.mask_token);
    if (!token) {
      throw data_error(
          "{}: the tokenizer has no token {}, the mask_token of config.json; vlmtrain init --text-model adds it",
          (folder / "tokenizer.json").string(), config.mask_token);
    }
    return MaskInputSettings{
        .side = config.side(settings.mask_image_size), .token_id = *token, .token = config.mask_token};
  });
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  return llava::compute_image_sample_shape(make_llava_config(config_json, folder), folder, size, max_pixels);
}

int64_t get_mask_side(const nlohmann::json& config_json, const std::filesystem::path& folder,
                      std::optional<int64_t> requested_side) {
  return Config::from_json(config_json, folder).side(requested_side);
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return llava::get_context_length(make_llava_config(config_json, folder), folder);
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  const double encoder =
      std::visit([](const auto& encoder_config) { return encoder_config.num_parameters(); }, config.encoder);
  return llava::num_parameters(config.llava_config, folder) + encoder + config.decoder.num_parameters();
}

}  // namespace

Family make_family() {
  return {.model_types = {"prs_med"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .get_mask_side = get_mask_side,
          .assemble_checkpoint = assemble_checkpoint,
          .default_modules_to_save = {{"mask_model.vision_encoder", nn::Component::kMaskEncoder},
                                      {"mask_model.mask_decoder", nn::Component::kMaskDecoder},
                                      {"mask_model.prompt_encoder", nn::Component::kMaskDecoder},
                                      {"mask_prompt", nn::Component::kMaskDecoder}}};
}

}  // namespace vlmtrain::models::prs_med
