#include "models/nanovlm/family.h"

#include "models/nanovlm/config.h"
#include "models/nanovlm/image_processor.h"
#include "models/nanovlm/model.h"
#include "models/nanovlm/processor.h"
#include "models/processing/load_chat_template.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::nanovlm {

namespace {

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(read_config(config, folder), io::checkpoint_tensor_names(folder), settings);
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config, const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config read = read_config(config, folder);
  text::Tokenizer tokenizer = load_tokenizer(read, folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = read.images_before_text() ? "question_answer" : "chatml",
                          .after_image = "",
                          .in_config = read.images_before_text() ? "" : read.chat_template,
                          .config_key = "lm_chat_template"});
  return std::make_unique<Processor>(read, ImageProcessor(read, settings.image_max_pixels), std::move(tokenizer),
                                     std::move(chat_template), settings);
}

data::SampleShape image_shape(const nlohmann::json& config, const std::filesystem::path& folder, image::ImageSize size,
                              std::optional<int64_t> max_pixels) {
  const Config read = read_config(config, folder);
  const TileGrid grid = ImageProcessor(read, max_pixels).grid_for(size);
  const int64_t side = read.vision.image_size;
  return {.tokens = count_image_text(read, grid),
          .image_tokens = grid.tiles() * read.image_tokens_per_tile(),
          .images = 1,
          .pixel_rows = grid.tiles(),
          .row = {.height = side, .width = side}};
}

ProcessorChanges processor_changes(const nlohmann::json& config, const std::filesystem::path& folder,
                                   const ProcessorSettings& settings, bool /*has_videos*/) {
  const Config read = read_config(config, folder);
  ProcessorChanges changes;
  if (!settings.image_max_pixels || !read.max_image_size) return changes;
  const int64_t along = (*read.max_image_size + read.vision.image_size - 1) / read.vision.image_size;
  if (*settings.image_max_pixels >= along * along * read.vision.image_size * read.vision.image_size) return changes;
  changes.not_saved.push_back(
      fmt::format("data.image_max_pixels={}: nanoVLM's own code limits the longer side of an image alone "
                  "(max_img_size in config.json), so that it cuts some images into more tiles than this run",
                  *settings.image_max_pixels));
  return changes;
}

ContextLength context_length(const nlohmann::json& config, const std::filesystem::path& folder) {
  return {
      .tokens = read_config(config, folder).max_positions, .refuses_longer = true, .key = "lm_max_position_embeddings"};
}

double elements(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = read_config(config_json, folder);
  return config.vision.elements() + config.text.elements();
}

}  // namespace

Family family() {
  return {.model_types = {},
          .build = build,
          .load_processor = load_processor,
          .image_shape = image_shape,
          .context_length = context_length,
          .elements = elements,
          .is_config = is_config,
          .config_name = "nanoVLM's own (keys vit_hidden_dim and lm_hidden_dim)",
          .processor_changes = processor_changes};
}

}  // namespace vlmtrain::models::nanovlm
