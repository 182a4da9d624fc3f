#include "models/qwen2_vl/family.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

using nlohmann::json;

/// Returns transformers' defaults for Qwen2-VL that differ from those of a Qwen2 text model.
json make_default_text_config() {
  return {{"vocab_size", 152064},       {"hidden_size", 8192},
          {"intermediate_size", 29568}, {"num_hidden_layers", 80},
          {"num_attention_heads", 64},  {"num_key_value_heads", 8},
          {"rms_norm_eps", 1e-5},       {"max_window_layers", 80},
          {"rope_theta", 1000000.0},    {"max_position_embeddings", 32768}};
}

LlamaConfig read_text_config(const json& text_config, const std::string& source) {
  json text = make_default_text_config();
  text.update(text_config);
  text["model_type"] = "qwen2";
  const auto sections = extract_mrope_sections(text, {16, 24, 24}, source);
  for (const json& layer : text.value("layer_types", json::array())) {
    if (layer != "full_attention") {
      throw data_error("{}: layer_types has {}; only full_attention is supported", source,
                       io::make_json_excerpt(layer));
    }
  }
  LlamaConfig config = LlamaConfig::from_json(text, source);
  if (config.head_dim * config.num_heads != config.hidden_size) {
    throw config_error("{}: hidden_size {} is not num_attention_heads {} heads of {} features", source,
                       config.hidden_size, config.num_heads, config.head_dim);
  }
  check_mrope_sections(sections, config.head_dim, source);
  config.rope.sections = sections;
  return config;
}

VisionConfig read_qwen2_vision_config(const json& vision, const std::string& source) {
  VisionConfig config = read_common_vision_config(vision, source);
  config.uses_qwen2_5_layers = false;
  config.hidden_size = read_size(vision, "embed_dim", 1280, kMaxLayerWidth, source);
  const auto ratio = io::get_or<double>(vision, "mlp_ratio", 4, source);
  const double width = static_cast<double>(config.hidden_size) * ratio;
  if (!(width >= 1 && width <= static_cast<double>(kMaxLayerWidth))) {
    throw config_error("{}: mlp_ratio {} of embed_dim {} gives an invalid layer width", source, ratio,
                       config.hidden_size);
  }
  config.intermediate_size = static_cast<int64_t>(width);
  config.out_hidden_size = io::get_or<int64_t>(vision, "hidden_size", config.out_hidden_size, source);
  config.activation =
      parse_activation(io::get_or<std::string>(vision, "hidden_act", "quick_gelu", source), "hidden_act", source);
  return config;
}

VisionConfig read_qwen2_5_vision_config(const json& vision, const std::string& source) {
  VisionConfig config = read_common_vision_config(vision, source);
  config.hidden_size = io::get_or<int64_t>(vision, "hidden_size", 3584, source);
  config.intermediate_size = io::get_or<int64_t>(vision, "intermediate_size", config.intermediate_size, source);
  config.out_hidden_size = io::get_or<int64_t>(vision, "out_hidden_size", config.out_hidden_size, source);
  const auto activation = io::get_or<std::string>(vision, "hidden_act", "silu", source);
  if (activation != "silu") {
    throw data_error("{}: hidden_act {} is not supported in a Qwen2.5-VL tower; supported: silu", source, activation);
  }
  const auto full_attention_blocks =
      io::get_or<std::vector<int64_t>>(vision, "fullatt_block_indexes", {7, 15, 23, 31}, source);
  config.full_attention_blocks = {full_attention_blocks.begin(), full_attention_blocks.end()};
  const auto window = io::get_or<int64_t>(vision, "window_size", 112, source);
  config.tokens_per_window_side = window / std::max<int64_t>(config.pixels_per_token_side(), 1);
  if (*config.tokens_per_window_side < 1) {
    throw config_error("{}: window_size {} is smaller than a token's side of {} pixels", source, window,
                       config.pixels_per_token_side());
  }
  return config;
}

}  // namespace

std::vector<int64_t> extract_mrope_sections(json& text, std::vector<int64_t> defaults, const std::string& source) {
  std::vector<int64_t> sections = std::move(defaults);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = text.find(key);
    if (rope == text.end() || !rope->is_object()) continue;
    sections = io::get_or<std::vector<int64_t>>(*rope, "mrope_section", sections, source);
    for (const char* type : {"type", "rope_type"}) {
      if (rope->value(type, json()) == "mrope") (*rope)[type] = "default";
    }
  }
  return sections;
}

void check_mrope_sections(const std::vector<int64_t>& sections, int64_t head_dim, const std::string& source) {
  const bool is_plausible =
      std::ssize(sections) == data::kNumPositionAxes &&
      std::ranges::all_of(sections, [&](int64_t pairs) { return pairs >= 0 && pairs <= head_dim; });
  if (!is_plausible || std::accumulate(sections.begin(), sections.end(), int64_t{0}) != head_dim / 2) {
    throw config_error("{}: mrope_section [{}] does not divide the {} pairs of a head among time, height and width",
                       source, make_excerpt(fmt::format("{}", fmt::join(sections, ", "))), head_dim / 2);
  }
}

void check_vision_sizes(const VisionConfig& vision, const std::string& source) {
  check_size(vision.hidden_size, "hidden_size", kMaxLayerWidth, source);
  check_size(vision.intermediate_size, "intermediate_size", kMaxLayerWidth, source);
  check_size(vision.num_blocks, "depth", kMaxBlocks, source);
  check_size(vision.num_heads, "num_heads", kMaxLayerWidth, source);
  check_size(vision.patch_size, "patch_size", kMaxImageSide, source);
  check_size(vision.temporal_patch_size, "temporal_patch_size", kMaxBlocks, source);
  check_size(vision.merge_size, "spatial_merge_size", kMaxBlocks, source);
  check_size(vision.pixels_per_token_side(), "patch_size times spatial_merge_size", kMaxImageSide, source);
  if (vision.hidden_size % vision.num_heads != 0 || vision.hidden_size / vision.num_heads % 4 != 0) {
    throw data_error("{}: {} features for {} heads; the 2D RoPE needs a multiple of 4 features per head", source,
                     vision.hidden_size, vision.num_heads);
  }
}

VisionConfig read_common_vision_config(const json& vision, const std::string& source) {
  reject_attention_dropout(vision, source);
  VisionConfig config;
  config.num_blocks = io::get_or<int64_t>(vision, "depth", config.num_blocks, source);
  config.num_heads = io::get_or<int64_t>(vision, "num_heads", config.num_heads, source);
  config.patch_size = read_size(vision, "patch_size", config.patch_size, kMaxImageSide, source);
  config.temporal_patch_size = io::get_or<int64_t>(vision, "temporal_patch_size", config.temporal_patch_size, source);
  config.merge_size = read_size(vision, "spatial_merge_size", config.merge_size, kMaxImageSide, source);
  if (io::get_or<int64_t>(vision, "in_channels", 3, source) != 3) {
    throw config_error("{}: in_channels must be 3", source);
  }
  const json rope = get_section(vision, "rope_parameters", source);
  if (!rope.empty()) {
    config.rope_theta = read_number(rope, "rope_theta", config.rope_theta, kRopeThetaRange, source);
    const auto type = io::get_or<std::string>(rope, "rope_type", "axial", source);
    if (type != "axial") throw data_error("{}: rope_type {} is not supported; supported: axial", source, type);
  }
  return config;
}

int64_t read_token_id(const json& config, const char* key, int64_t fallback, const LlamaConfig& text,
                      const std::string& source) {
  const auto id = io::get_or<int64_t>(config, key, fallback, source);
  if (id < 0 || id >= text.vocab_size) {
    throw config_error("{}: {} {} is not in the vocabulary of {}", source, key, id, text.vocab_size);
  }
  return id;
}

double VisionConfig::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size), merged = hidden * static_cast<double>(patches_per_token());
  const double parameters_per_block =
      hidden * (4.0 * hidden + (uses_qwen2_5_layers ? 3.0 : 2.0) * static_cast<double>(intermediate_size));
  const double values_per_patch = 3.0 * static_cast<double>(patch_size) * static_cast<double>(patch_size) *
                                  static_cast<double>(temporal_patch_size);
  return static_cast<double>(num_blocks) * parameters_per_block + hidden * values_per_patch +
         merged * (merged + static_cast<double>(out_hidden_size));
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  const bool is_qwen2_5 = json_config.at("model_type") == "qwen2_5_vl";
  const bool has_text_config = json_config.contains("text_config") && !json_config["text_config"].is_null();
  Config config;
  config.text = read_text_config(has_text_config ? json_config["text_config"] : json_config,
                                 has_text_config ? source + " (text_config)" : source);
  config.text.tie_word_embeddings |= io::get_or<bool>(json_config, "tie_word_embeddings", false, source);

  const json vision = json_config.value("vision_config", json::object());
  const std::string vision_source = source + " (vision_config)";
  config.vision =
      is_qwen2_5 ? read_qwen2_5_vision_config(vision, vision_source) : read_qwen2_vision_config(vision, vision_source);
  check_vision_sizes(config.vision, vision_source);
  if (config.vision.out_hidden_size != config.text.hidden_size) {
    throw data_error("{}: {} is {}, but the text model's hidden_size is {}; they must be equal", vision_source,
                     is_qwen2_5 ? "out_hidden_size" : "hidden_size", config.vision.out_hidden_size,
                     config.text.hidden_size);
  }
  if (is_qwen2_5) config.tokens_per_second = read_size(vision, "tokens_per_second", 4, kMaxPositions, vision_source);
  config.image_token_id = read_token_id(json_config, "image_token_id", config.image_token_id, config.text, source);
  config.video_token_id = read_token_id(json_config, "video_token_id", config.video_token_id, config.text, source);
  return config;
}

namespace {

text::MediaMarkup make_media_markup(std::string_view pad) {
  return {.block = format_vision_block(pad), .token = std::string(pad)};
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  const auto images = read_image_settings(folder, config.vision, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, config.vision, settings.image_max_pixels);
  warn_if_frame_rate_differs(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template = load_chat_template(folder, tokenizer, settings,
                                                        {.fallback = "qwen2_vl",
                                                         .image_markup = make_media_markup(kImagePad),
                                                         .video_markup = make_media_markup(kVideoPad)});
  return make_processor(config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

data::SampleShape make_sample_shape_with_markers(const data::PatchGrid& grid, const VisionConfig& vision) {
  data::SampleShape shape = vision.patch_format().make_sample_shape(grid);
  shape.tokens += 2;  // kVisionStart and kVisionEnd
  return shape;
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const image::ImageSize resized = compute_resized_size(size, read_image_settings(folder, vision, max_pixels), vision);
  return make_sample_shape_with_markers(vision.patch_format().compute_grid(1, resized), vision);
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  VideoSettings videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  videos.limits.max_frames = std::min(videos.limits.max_frames, settings.video_max_frames);
  const auto frames = std::ssize(videos.select_frames(video, settings.video_fps, vision));
  const image::ImageSize resized =
      compute_resized_size(video.size, videos.compute_frame_settings(frames, vision), vision);
  auto shape = make_sample_shape_with_markers(vision.patch_format().compute_grid(frames, resized), vision);
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const bool has_pixel_limit = settings.image_max_pixels.has_value();
  const bool saves_video_sampling = has_videos || !has_default_video_sampling(settings);
  ProcessorOverrides overrides{.creates_video_config = saves_video_sampling,
                               .video_processor_type = "Qwen2VLVideoProcessor"};
  if (has_pixel_limit) {
    overrides.edit_image_settings = [budget = read_image_settings(folder, vision, settings.image_max_pixels).budget](
                                        auto& file) { write_pixel_budget(file, budget); };
  }
  if (!has_pixel_limit && !saves_video_sampling) return overrides;
  const auto videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  overrides.edit_video_settings = [=, fps = settings.video_fps, max_frames = settings.video_max_frames](auto& file) {
    if (has_pixel_limit) write_pixel_budget(file, videos.pixels.budget);
    if (saves_video_sampling) write_frame_sampling(file, videos.limits, fps, max_frames);
  };
  return overrides;
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
  return {.model_types = {"qwen2_vl", "qwen2_5_vl"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .compute_video_sample_shape = compute_video_sample_shape,
          .make_processor_overrides = make_processor_overrides};
}

}  // namespace vlmtrain::models::qwen2_vl
