#include "models/gemma3/family.h"

#include <cmath>
#include <optional>
#include <utility>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/gemma3/processor.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::gemma3 {

namespace {

using nlohmann::json;

constexpr NumberRange kQueryPreAttnScalarRange{0, 1e6};  // 1e6 rejects only damaged files

/// Throws UserError if the key has a value other than null, false and 0.
void reject_enabled_setting(const json& text, const char* key, const std::string& source) {
  const auto it = text.find(key);
  if (it == text.end() || it->is_null() || *it == false || *it == 0) return;
  throw data_error("{}: {} is {}, which is not supported; Gemma 3's checkpoints have null, false or 0 there", source,
                   key, it->dump());
}

GemmaLayerType parse_layer_type(const std::string& name, const std::string& source) {
  if (name == "full_attention") return GemmaLayerType::kFull;
  if (name == "sliding_attention") return GemmaLayerType::kSliding;
  throw data_error("{}: layer_types: {} is not supported; supported: full_attention, sliding_attention", source, name);
}

/// Returns the layer types from `layer_types` (transformers 5), else full attention in every
/// `sliding_window_pattern`-th block.
std::vector<GemmaLayerType> read_layer_types(const json& text, const std::string& source) {
  const int64_t num_layers = read_size(text, "num_hidden_layers", 26, kMaxBlocks, source);
  const int64_t pattern = read_size(text, "sliding_window_pattern", 6, kMaxBlocks, source);
  std::vector<GemmaLayerType> layer_types;
  const auto layer_type_names = io::get_or<std::vector<std::string>>(text, "layer_types", {}, source);
  if (layer_type_names.empty()) {
    for (int64_t i = 0; i < num_layers; ++i) {
      layer_types.push_back((i + 1) % pattern == 0 ? GemmaLayerType::kFull : GemmaLayerType::kSliding);
    }
    return layer_types;
  }
  if (std::ssize(layer_type_names) != num_layers) {
    throw config_error("{}: layer_types names {} blocks, but num_hidden_layers is {}", source, layer_type_names.size(),
                       num_layers);
  }
  for (const auto& type : layer_type_names) layer_types.push_back(parse_layer_type(type, source));
  return layer_types;
}

/// Section of `rope_parameters` for one layer type (transformers 5), with the key of transformers
/// 4.
struct RopeSectionDefaults {
  const char* section;
  const char* legacy_theta_key;  ///< key of transformers 4 for rope_theta
  double theta;                  ///< default of rope_theta
};

/// Reads the RoPE settings of one layer type. `scaling`: the `rope_scaling` of transformers 4;
/// empty if it does not apply.
RopeConfig read_rope_config(const json& text, const RopeSectionDefaults& defaults, const json& scaling,
                            const std::string& source) {
  const json sections = get_section(text, "rope_parameters", source);
  const std::string section_source = source + " (rope_parameters)";
  json rope_parameters = get_section(sections, defaults.section, section_source);
  // transformers prefers the older key if both exist.
  if (!scaling.empty()) rope_parameters.update(scaling);
  if (!rope_parameters.contains("rope_theta"))
    rope_parameters["rope_theta"] =
        read_number(text, defaults.legacy_theta_key, defaults.theta, kRopeThetaRange, source);
  RopeConfig rope =
      RopeConfig::from_json({{"rope_parameters", std::move(rope_parameters)}}, section_source + "." + defaults.section);
  if (rope.type != RopeType::kDefault && rope.type != RopeType::kLinear) {
    throw data_error("{}: rope of {} is not supported; supported: default, linear", source, defaults.section);
  }
  return rope;
}

void read_rope_configs(const json& text, GemmaConfig& config, const std::string& source) {
  const json sections = get_section(text, "rope_parameters", source);
  for (const auto& [key, value] : sections.items()) {
    if (key == "full_attention" || key == "sliding_attention") continue;
    throw config_error("{}: rope_parameters.{}: Gemma 3 has the sections full_attention and sliding_attention there",
                       source, key);
  }
  // transformers 4 scales only full attention.
  config.full.rope =
      read_rope_config(text, {"full_attention", "rope_theta", 1e6}, get_section(text, "rope_scaling", source), source);
  config.sliding.rope =
      read_rope_config(text, {"sliding_attention", "rope_local_base_freq", 1e4}, json::object(), source);
}

int64_t read_tokens_per_side(const json& config, const VisionTransformerConfig& vision, const std::string& source) {
  const int64_t patches = vision.patches_per_side();
  const int64_t tokens = read_size(config, "mm_tokens_per_image", 256, kMaxPositions, source);
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(tokens))));
  if (side * side != tokens || patches % side != 0) {
    throw config_error(
        "{}: mm_tokens_per_image {} is not a square whose side divides the vision tower's {} patches per side", source,
        tokens, patches);
  }
  return side;
}

/// Returns a token id, whose key is `key` or in newer files `new_key`.
int64_t read_token_id(const json& config, const char* key, const char* new_key, int64_t fallback, int64_t vocab_size,
                      const std::string& source) {
  return read_gemma_token_id(config, config.contains(key) ? key : new_key, fallback, vocab_size, source);
}

}  // namespace

GemmaConfig read_text_config(const json& text, const std::string& source) {
  const auto type = io::get_or<std::string>(text, "model_type", "gemma3_text", source);
  if (type != "gemma3_text") {
    throw data_error("{}: text model {} is not supported in Gemma 3; supported: gemma3_text", source, type);
  }
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention",
                          "num_experts", "num_local_experts", "attention_bias"}) {
    reject_enabled_setting(text, key, source);
  }
  reject_attention_dropout(text, source);
  const auto activation = io::get_or<std::string>(text, "hidden_activation", "gelu_pytorch_tanh", source);
  if (activation != "gelu_pytorch_tanh") {
    throw data_error("{}: hidden_activation {} is not supported; supported: gelu_pytorch_tanh", source, activation);
  }
  GemmaConfig config;
  config.vocab_size = read_size(text, "vocab_size", 262'208, kMaxVocabSize, source);
  config.max_positions = read_size(text, "max_position_embeddings", 131'072, kMaxPositions, source);
  config.hidden_size = read_size(text, "hidden_size", 2304, kMaxLayerWidth, source);
  config.intermediate_size = read_size(text, "intermediate_size", 9216, kMaxLayerWidth, source);
  nn::HeadShape heads{.num_heads = read_size(text, "num_attention_heads", 8, kMaxLayerWidth, source),
                      .num_key_value_heads = read_size(text, "num_key_value_heads", 4, kMaxLayerWidth, source),
                      .head_dim = read_size(text, "head_dim", 256, kMaxLayerWidth, source)};
  check_gemma_heads(heads, source);
  config.full.heads = config.sliding.heads = heads;
  config.rms_norm_eps = read_number(text, "rms_norm_eps", config.rms_norm_eps, kNormEpsRange, source);
  config.query_pre_attn_scalar =
      read_number(text, "query_pre_attn_scalar", config.query_pre_attn_scalar, kQueryPreAttnScalarRange, source);
  config.sliding.window = read_size(text, "sliding_window", 4096, kMaxPositions, source);
  config.layer_types = read_layer_types(text, source);
  read_rope_configs(text, config, source);
  return config;
}

Config Config::from_json(const json& config_json, const std::string& source) {
  Config config;
  config.text = read_text_config(get_section(config_json, "text_config", source), source + " (text_config)");
  const json vision = get_section(config_json, "vision_config", source);
  const std::string section_source = source + " (vision_config)";
  const auto tower_model_type = io::get_or<std::string>(vision, "model_type", "siglip_vision_model", section_source);
  if (tower_model_type != "siglip_vision_model") {
    throw data_error("{}: vision tower {} is not supported in Gemma 3; supported: siglip_vision_model", section_source,
                     tower_model_type);
  }
  config.vision = read_siglip_config(vision, section_source);
  config.tie_word_embeddings = io::get_or<bool>(config_json, "tie_word_embeddings", true, source);
  config.tokens_per_side = read_tokens_per_side(config_json, config.vision, source);
  const int64_t vocab_size = config.text.vocab_size;
  config.image_token_id =
      read_token_id(config_json, "image_token_index", "image_token_id", config.image_token_id, vocab_size, source);
  config.image_start_token_id =
      read_token_id(config_json, "boi_token_index", "boi_token_id", config.image_start_token_id, vocab_size, source);
  config.image_end_token_id =
      read_token_id(config_json, "eoi_token_index", "eoi_token_id", config.image_end_token_id, vocab_size, source);
  return config;
}

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
          .unsupported_model_types = {{"gemma3n", kDifferentModelReason}}};
}

}  // namespace vlmtrain::models::gemma3
