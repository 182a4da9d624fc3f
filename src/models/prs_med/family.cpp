#include "models/prs_med/family.h"

#include "models/llava/family.h"
#include "models/processing/conversation_processor.h"
#include "models/prs_med/assembly/assemble.h"
#include "models/prs_med/config.h"
#include "models/prs_med/model.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::prs_med {

namespace {

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, llava::ModelSource::read(config.llava, folder), settings);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return llava::load_processor(config.llava, folder, settings, [&](const text::Tokenizer& tokenizer) {
    const auto token = tokenizer.token_to_id(config.mask_token);
    if (!token) {
      throw data_error(
          "{}: the tokenizer has no token {}, which config.json says stands for masks (mask_token); vlmtrain init "
          "--text-model adds it",
          (folder / "tokenizer.json").string(), config.mask_token);
    }
    return MaskInput{.side = config.side(settings.mask_image_size), .token_id = *token, .token = config.mask_token};
  });
}

data::SampleShape image_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                              image::ImageSize size, std::optional<int64_t> max_pixels) {
  return llava::image_shape(llava_json(config_json, folder), folder, size, max_pixels);
}

int64_t mask_side(const nlohmann::json& config_json, const std::filesystem::path& folder,
                  std::optional<int64_t> wanted) {
  return Config::from_json(config_json, folder).side(wanted);
}

ContextLength context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return llava::context_length(llava_json(config_json, folder), folder);
}

double elements(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  const double encoder = std::visit([](const auto& own) { return own.elements(); }, config.encoder);
  return llava::elements(config.llava, folder) + encoder + config.decoder.elements();
}

}  // namespace

Family family() {
  return {.model_types = {"prs_med"},
          .build = build,
          .load_processor = load_processor,
          .image_shape = image_shape,
          .context_length = context_length,
          .elements = elements,
          .mask_side = mask_side,
          .assemble = assemble,
          .trained_beside_adapters = {{"mask_model.vision_encoder", nn::Component::kMaskEncoder},
                                      {"mask_model.mask_decoder", nn::Component::kMaskDecoder},
                                      {"mask_model.prompt_encoder", nn::Component::kMaskDecoder},
                                      {"mask_prompt", nn::Component::kMaskDecoder}}};
}

}  // namespace vlmtrain::models::prs_med
