#include "models/family.h"

#include "models/nanovlm/processor.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::nanovlm {

namespace {

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config model_config = read_config(config, folder);
  text::Tokenizer tokenizer = load_tokenizer(model_config, folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = model_config.puts_images_before_text() ? "question_answer" : "chatml",
                          .text_after_leading_image = "",
                          .config_template = model_config.puts_images_before_text() ? "" : model_config.chat_template,
                          .config_template_key = "lm_chat_template"});
  return make_processor(model_config, ImageProcessor(model_config, settings.image_max_pixels), std::move(tokenizer),
                        std::move(chat_template), settings);
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const Config model_config = read_config(config, folder);
  const TileGrid grid = ImageProcessor(model_config, max_pixels).compute_grid(size);
  const int64_t side = model_config.vision.image_size;
  return {.tokens = count_image_text_tokens(model_config, grid),
          .image_tokens = grid.num_tiles() * model_config.image_tokens_per_tile(),
          .num_images = 1,
          .pixel_rows = grid.num_tiles(),
          .row = {.height = side, .width = side}};
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool /*has_videos*/) {
  const Config model_config = read_config(config, folder);
  ProcessorOverrides overrides;
  if (!settings.image_max_pixels || !model_config.max_image_side) return overrides;
  const int64_t tiles_per_side =
      (*model_config.max_image_side + model_config.vision.image_size - 1) / model_config.vision.image_size;
  if (*settings.image_max_pixels >=
      tiles_per_side * tiles_per_side * model_config.vision.image_size * model_config.vision.image_size)
    return overrides;
  overrides.unsaved_settings.push_back(
      fmt::format("{}={}: nanoVLM's original code limits only the longer side of an image (max_img_size in "
                  "config.json), so it splits some images into more tiles than this run",
                  keys::data::kImageMaxPixels, *settings.image_max_pixels));
  return overrides;
}

ContextLength get_context_length(const nlohmann::json& config, const std::filesystem::path& folder) {
  return {
      .tokens = read_config(config, folder).max_positions, .is_hard_limit = true, .key = "lm_max_position_embeddings"};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = read_config(config_json, folder);
  return config.vision.num_parameters() + config.text.num_parameters();
}

}  // namespace

Family make_family() {
  return {.model_types = {},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .matches_config = matches_config,
          .config_description = "nanoVLM's own (keys vit_hidden_dim and lm_hidden_dim)",
          .make_processor_overrides = make_processor_overrides};
}

}  // namespace vlmtrain::models::nanovlm
