#include "models/family.h"

#include "models/gemma3/config.h"
#include "models/gemma3/processor.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::gemma3 {

namespace {

Config read_config(const nlohmann::json& config, const std::filesystem::path& folder) {
  return Config::from_json(config, (folder / "config.json").string());
}

void check_max_pixels(const Config& config, std::optional<int64_t> max_pixels) {
  const int64_t pixels = config.vision.image_size * config.vision.image_size;
  if (max_pixels && *max_pixels < pixels) {
    throw usage_error("{} is {}, but this model resizes every image to {} pixels; raise it to that or more",
                      keys::data::kImageMaxPixels, *max_pixels, pixels);
  }
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = read_config(config_json, folder);
  check_max_pixels(config, settings.image_max_pixels);
  check_num_image_tokens(folder, "image_seq_length", config.tokens_per_image());
  const auto images = ImageProcessorSettings::read(config, folder);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  const std::string start_token(kStartOfImage);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = "gemma3", .image_markup = {.block = start_token, .token = start_token}});
  return make_processor(config, images, std::move(tokenizer), std::move(chat_template), settings);
}

/// Returns the number of tokens of format_image_text() without image tokens. Exact if `folder` has
/// a tokenizer.json; otherwise counted as Gemma's tokenizer splits the text.
int64_t count_marker_tokens(const Config& config, int64_t num_crops, const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (std::filesystem::exists(file)) {
    const text::Tokenizer tokenizer = text::read_tokenizer(folder);
    return std::ssize(tokenizer.encode(format_image_text(config.tokens_per_image(), num_crops)).ids) -
           (1 + num_crops) * config.tokens_per_image();
  }
  // Per image or crop: two line breaks (one token), the start and end markers, two line breaks.
  // With crops: the words of the introduction, and the spaces between crops.
  constexpr int64_t kMarkerTokensPerImage = 4, kNumIntroTokens = 17, kNumSeparatorTokens = 1;
  return (1 + num_crops) * kMarkerTokensPerImage +
         (num_crops == 0 ? 0 : kNumIntroTokens + (num_crops - 1) * kNumSeparatorTokens);
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const Config config = read_config(config_json, folder);
  check_max_pixels(config, max_pixels);
  const auto num_crops = std::ssize(compute_crops(size, ImageProcessorSettings::read(config, folder).pan_and_scan));
  const int64_t image_tokens = (1 + num_crops) * config.tokens_per_image();
  return {.tokens = image_tokens + count_marker_tokens(config, num_crops, folder),
          .image_tokens = image_tokens,
          .num_images = 1,
          .pixel_rows = 1 + num_crops,
          .row = {.height = config.vision.image_size, .width = config.vision.image_size}};
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return {.tokens = read_config(config_json, folder).text.max_positions, .is_hard_limit = false};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return read_config(config_json, folder).num_parameters();
}

constexpr std::string_view kDifferentModelReason =
    "a different model than Gemma 3, with its own text model and vision tower";

}  // namespace

Family make_family() {
  return {.model_types = {"gemma3"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .unsupported_model_types = {{"gemma3n", kDifferentModelReason}, {"gemma4", kDifferentModelReason}}};
}

}  // namespace vlmtrain::models::gemma3
