#include "models/internvl/family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/tensor_names.h"
#include "models/family.h"
#include "models/internvl/processor.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::internvl {

namespace {

using nlohmann::json;

/// Returns the side of a square, given as one number or, as transformers writes it, as two equal
/// ones.
int64_t read_square_side(const json& config, const char* key, int64_t fallback, const std::string& source) {
  const auto it = config.find(key);
  if (it == config.end() || !it->is_array()) return read_size(config, key, fallback, kMaxImageSide, source);
  if (it->size() != 2 || it->front() != it->back()) {
    throw data_error("{}: {} is {}; only squares are supported", source, key, io::make_json_excerpt(*it));
  }
  return read_size({{key, it->front()}}, key, fallback, kMaxImageSide, source);
}

/// Throws UserError for unsupported values, none of which a published checkpoint has.
void reject_unsupported_vision_settings(const json& vision, const std::string& source) {
  const auto check_supported_value = [&](const char* key, const json& supported) {
    const json value = vision.value(key, supported);
    if (value != supported) {
      throw data_error("{}: {} is {}, which is not supported; supported: {}", source, key, io::make_json_excerpt(value),
                       supported.dump());
    }
  };
  check_supported_value("model_type", "internvl_vision");
  check_supported_value("num_channels", 3);
  check_supported_value("use_mask_token", false);
  check_supported_value("use_absolute_position_embeddings", true);
  for (const char* key : {"hidden_dropout_prob", "attention_dropout", "projection_dropout"})
    check_supported_value(key, 0.0);
}

NormType parse_norm_type(const json& vision, const std::string& source) {
  const auto name = io::get_or<std::string>(vision, "norm_type", "layer_norm", source);
  if (name == "layer_norm") return NormType::kLayerNorm;
  if (name == "rms_norm") return NormType::kRmsNorm;
  throw data_error("{}: norm_type {} is not supported; supported: layer_norm, rms_norm", source, name);
}

VisionConfig read_vision_config(const json& vision, const std::string& source) {
  reject_unsupported_vision_settings(vision, source);
  VisionConfig config;
  config.hidden_size = read_size(vision, "hidden_size", config.hidden_size, kMaxLayerWidth, source);
  config.intermediate_size = read_size(vision, "intermediate_size", config.intermediate_size, kMaxLayerWidth, source);
  config.num_layers = read_size(vision, "num_hidden_layers", config.num_layers, kMaxBlocks, source);
  config.num_heads = read_size(vision, "num_attention_heads", config.num_heads, kMaxLayerWidth, source);
  config.image_size = read_square_side(vision, "image_size", config.image_size, source);
  config.patch_size = read_square_side(vision, "patch_size", config.patch_size, source);
  config.norm_eps = read_number(vision, "layer_norm_eps", config.norm_eps, kNormEpsRange, source);
  config.norm_type = parse_norm_type(vision, source);
  config.activation =
      parse_activation(io::get_or<std::string>(vision, "hidden_act", "gelu", source), "hidden_act", source);
  config.qkv_bias = io::get_or<bool>(vision, "attention_bias", false, source);
  config.qk_norm = io::get_or<bool>(vision, "use_qk_norm", false, source);
  config.has_final_norm = !io::get_or<bool>(vision, "use_mean_pooling", true, source);
  config.layer_scale_init_value =
      io::get_or<double>(vision, "layer_scale_init_value", config.layer_scale_init_value, source);
  if (config.hidden_size % config.num_heads != 0) {
    throw config_error("{}: hidden_size {} is not a multiple of num_attention_heads {}", source, config.hidden_size,
                       config.num_heads);
  }
  if (config.image_size < config.patch_size) {
    throw config_error("{}: image_size {} is smaller than patch_size {}", source, config.image_size, config.patch_size);
  }
  return config;
}

/// Replaces the RoPE type "dynamic" (NTK-aware scaling) by "default"; returns true if it was set.
/// Up to max_position_embeddings, both types have bitwise equal frequencies.
bool remove_dynamic_rope(json& text) {
  bool is_removed = false;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = text.find(key);
    if (rope == text.end() || !rope->is_object()) continue;
    for (const char* type : {"type", "rope_type"}) {
      if (rope->value(type, json()) != "dynamic") continue;
      (*rope)[type] = "default";
      is_removed = true;
    }
  }
  return is_removed;
}

void reject_unsupported_text_model(const json& text, const std::string& type, const std::string& source) {
  if (type.find("moe") != std::string::npos || type == "gpt_oss") {
    throw data_error(
        "{}: text model {} is a mixture of experts, as in InternVL3_5-20B-A4B, -30B-A3B and -241B-A28B, which is not "
        "supported; use a dense one, such as InternVL3_5-8B-HF or -14B-HF",
        source, type);
  }
  constexpr std::array<std::string_view, 3> kSupportedTextModelTypes{"qwen2", "qwen3", "llama"};
  if (std::ranges::find(kSupportedTextModelTypes, type) == kSupportedTextModelTypes.end()) {
    throw data_error("{}: text model {} is not supported in InternVL; supported: qwen2, qwen3, llama", source, type);
  }
  for (const json& layer : text.value("layer_types", json::array())) {
    if (layer != "full_attention") {
      throw data_error("{}: layer_types has {}; only full_attention is supported", source,
                       io::make_json_excerpt(layer));
    }
  }
}

/// Returns whether the output projection is tied to the embedding: the top-level key if it exists.
/// Files of transformers 4 lack it, and their text_config can contradict the weights. The weights
/// decide then, as in transformers 5; without weights, text_config does.
bool read_tie_word_embeddings(const json& config, const LlamaConfig& text, const std::filesystem::path& folder) {
  if (config.contains("tie_word_embeddings") && !config["tie_word_embeddings"].is_null()) {
    return io::get<bool>(config, "tie_word_embeddings", (folder / "config.json").string());
  }
  const auto names = io::read_checkpoint_tensor_names(folder);
  if (names.empty()) return text.tie_word_embeddings;
  if (const auto tensors = find_output_tensor_names(names)) return are_output_tensors_equal(*tensors, folder);
  return std::ranges::none_of(names, is_output_projection);
}

/// Returns 1 / downsample_ratio. Throws UserError if it is not an integer.
int64_t read_scale_factor(const json& config, const std::string& source) {
  const double downsample_ratio = read_number(config, "downsample_ratio", 0.5, {.exclusive_min = 0, .max = 1}, source);
  const auto scale_factor = static_cast<int64_t>(std::min(1 / downsample_ratio, static_cast<double>(kMaxImageSide)));
  if (1.0 / static_cast<double>(scale_factor) != downsample_ratio) {
    throw config_error("{}: downsample_ratio {} is not the inverse of an integer", source, downsample_ratio);
  }
  return scale_factor;
}

void check_vision_feature_settings(const json& config, const std::string& source) {
  const json feature_layer = config.value("vision_feature_layer", json(-1));
  if (feature_layer != -1) {
    throw data_error("{}: vision_feature_layer {} is not supported; supported: -1 (the last)", source,
                     io::make_json_excerpt(feature_layer));
  }
  const auto select_strategy = io::get_or<std::string>(config, "vision_feature_select_strategy", "default", source);
  if (select_strategy != "default") {
    throw data_error("{}: vision_feature_select_strategy {} is not supported; supported: default", source,
                     select_strategy);
  }
}

json get_required_section(const json& config, const char* key, const std::string& source) {
  const json value = get_section(config, key, source);
  return value.is_null() ? json::object() : value;
}

}  // namespace

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  Config config;
  config.vision =
      read_vision_config(get_required_section(json_config, "vision_config", source), source + " (vision_config)");

  const std::string text_source = source + " (text_config)";
  json text = get_required_section(json_config, "text_config", source);
  const auto type = io::get_or<std::string>(text, "model_type", "qwen2", text_source);
  text["model_type"] = type;
  reject_unsupported_text_model(text, type, text_source);
  config.is_hard_limit = remove_dynamic_rope(text);
  config.text = LlamaConfig::from_json(text, text_source);
  config.text.tie_word_embeddings = read_tie_word_embeddings(json_config, config.text, folder);

  check_vision_feature_settings(json_config, source);
  config.scale_factor = read_scale_factor(json_config, source);
  if (config.vision.patches_per_side() % config.scale_factor != 0) {
    throw config_error("{}: {} patches per side are not a multiple of {}, the inverse of downsample_ratio", source,
                       config.vision.patches_per_side(), config.scale_factor);
  }
  config.projector_activation = parse_activation(
      io::get_or<std::string>(json_config, "projector_hidden_act", "gelu", source), "projector_hidden_act", source);
  config.image_token_id = io::get_or<int64_t>(json_config, "image_token_id", config.image_token_id, source);
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    throw config_error("{}: image_token_id {} is not in the vocabulary of {}", source, config.image_token_id,
                       config.text.vocab_size);
  }
  return config;
}

double Config::num_parameters() const {
  const auto hidden = static_cast<double>(vision.hidden_size), width = static_cast<double>(text.hidden_size);
  const double parameters_per_block = hidden * (4.0 * hidden + 2.0 * static_cast<double>(vision.intermediate_size));
  const double values_per_patch = 3.0 * static_cast<double>(vision.patch_size) * static_cast<double>(vision.patch_size);
  const double num_tower_parameters = static_cast<double>(vision.num_layers) * parameters_per_block +
                                      hidden * (values_per_patch + static_cast<double>(vision.num_positions()));
  const double pixel_shuffled_width = hidden * static_cast<double>(scale_factor) * static_cast<double>(scale_factor);
  return num_tower_parameters + width * (pixel_shuffled_width + width) + text.num_parameters();
}

namespace {

/// Throws UserError if processor_config.json has another number of tokens per tile than
/// config.json; transformers would format the text with it.
void check_processor_config(const Config& config, const std::filesystem::path& folder) {
  const auto path = folder / "processor_config.json";
  if (!std::filesystem::exists(path)) return;
  const auto tokens =
      io::get_or<int64_t>(io::read_json(path), "image_seq_length", config.image_tokens_per_tile(), path.string());
  if (tokens != config.image_tokens_per_tile()) {
    throw config_error("{}: image_seq_length is {}, but the model of config.json produces {} features per tile",
                       path.string(), tokens, config.image_tokens_per_tile());
  }
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  const ImageProcessor image_processor(read_image_settings(folder, config.vision), settings.image_max_pixels);
  const auto video_settings = VideoSettings::read(folder, config.vision, settings);
  warn_if_frame_rate_differs(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  const text::MediaMarkup image{std::string(kImageToken), std::string(kImageToken)};
  const text::MediaMarkup video{std::string(text::kVideoPlaceholder), std::string(text::kVideoPlaceholder)};
  text::ChatTemplate chat_template = load_chat_template(
      folder, tokenizer, settings, {.fallback = "internvl", .image_markup = image, .video_markup = video});
  return make_processor(config, image_processor, video_settings, std::move(tokenizer), std::move(chat_template),
                        settings);
}

data::SampleShape make_tile_sample_shape(int64_t tiles, int64_t tokens, const Config& config) {
  return {.tokens = tokens,
          .image_tokens = tiles * config.image_tokens_per_tile(),
          .num_images = 1,
          .pixel_rows = tiles,
          .row = {.height = config.vision.image_size, .width = config.vision.image_size}};
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  constexpr int64_t kNumMarkerTokens = 2;  // <img> and </img>
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  const ImageProcessor image_processor(read_image_settings(folder, config.vision), max_pixels);
  const int64_t tiles = image_processor.compute_grid(size, std::nullopt).num_tiles();
  return make_tile_sample_shape(tiles, tiles * config.image_tokens_per_tile() + kNumMarkerTokens, config);
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  check_processor_config(config, folder);
  const auto frames = std::ssize(VideoSettings::read(folder, config.vision, settings).sample_frame_indices(video));
  auto shape =
      make_tile_sample_shape(frames, count_video_text_tokens(frames, config.image_tokens_per_tile(), folder), config);
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const Config config = Config::from_json(config_json, folder);
  ProcessorOverrides overrides{.video_processor_type = "InternVLVideoProcessor"};
  if (settings.image_max_pixels) {
    const ImageProcessor image_processor(read_image_settings(folder, config.vision), settings.image_max_pixels);
    overrides.edit_image_settings = [min_cells = image_processor.min_cells(),
                                     max_cells = image_processor.max_cells()](auto& file) {
      file["min_patches"] = min_cells;
      file["max_patches"] = max_cells;
    };
  }
  overrides.creates_video_config = has_videos || !has_default_video_sampling(settings);
  if (!overrides.creates_video_config) return overrides;
  const auto video_settings = VideoSettings::read(folder, config.vision, settings);
  overrides.edit_video_settings = [video_settings](auto& file) {
    file["do_sample_frames"] = true;
    if (video_settings.num_frames) {
      file["num_frames"] = std::min(*video_settings.num_frames, video_settings.max_frames);
    } else {
      file["fps"] = video_settings.sampling_fps;
    }
  };
  if (!video_settings.num_frames && settings.video_max_frames != ProcessorSettings().video_max_frames) {
    overrides.unsaved_settings.push_back(
        fmt::format("{}={}: transformers' InternVLVideoProcessor cannot combine a frame limit with a frame rate",
                    keys::data::kVideoMaxFrames, settings.video_max_frames));
  }
  return overrides;
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  return {.tokens = config.text.max_positions, .is_hard_limit = config.is_hard_limit};
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return Config::from_json(config_json, folder).num_parameters();
}

}  // namespace

Family make_family() {
  return {.model_types = {"internvl"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .compute_video_sample_shape = compute_video_sample_shape,
          .make_processor_overrides = make_processor_overrides,
          .unsupported_model_types = {
              {"internvl_chat",
               "this is InternVL in its original layout; use the repository in transformers' layout, "
               "whose name ends in -hf or -HF: OpenGVLab/InternVL3-8B-hf, OpenGVLab/InternVL3_5-8B-HF"}}};
}

}  // namespace vlmtrain::models::internvl
