#include "models/qwen3_vl/family.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen3_vl/processor.h"
#include "models/qwen3_vl/variant.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::qwen3_vl {

using nlohmann::json;

namespace {

LlamaConfig read_text_config(const json& text_config, const Variant& variant, const std::string& source) {
  if (text_config.contains("num_experts") && text_config.at("num_experts") != 0) {
    throw data_error("{}: num_experts is not supported: {}", source, variant.moe_reason);
  }
  json text{{"rope_theta", variant.rope_theta}, {"max_position_embeddings", variant.max_positions}};
  if (!text_config.empty()) text.update(text_config);
  text["model_type"] = variant.text_model_type;
  const auto sections = qwen2_vl::extract_mrope_sections(text, variant.mrope_sections, source);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json rope = get_section(text, key, source);
    if (!rope.empty() && !io::get_or<bool>(rope, "mrope_interleaved", true, source)) {
      throw data_error("{}: {}.mrope_interleaved: false is not supported; the axes are interleaved in {}", source, key,
                       variant.name);
    }
  }
  LlamaConfig config = LlamaConfig::from_json(text, source);
  const int64_t rotary_dim = config.rope.compute_rotary_dim(config.head_dim);
  qwen2_vl::check_mrope_sections(sections, rotary_dim, source);
  // Interleaved sections: height uses pairs 1, 4, 7 …, width 2, 5, 8 …; the last one must exist.
  const auto get_last_pair = [&](int64_t axis) {
    return axis + data::kNumPositionAxes * (sections[static_cast<size_t>(axis)] - 1);
  };
  if (std::max(get_last_pair(1), get_last_pair(2)) >= rotary_dim / 2) {
    throw config_error("{}: mrope_section [{}]: every third of {} pairs is too few for height and width", source,
                       fmt::join(sections, ", "), rotary_dim / 2);
  }
  config.rope.sections = sections;
  config.rope.is_mrope_interleaved = true;
  return config;
}

/// Returns the side of the square table of positions.
int64_t read_position_table_side(const json& vision, const std::string& source) {
  const int64_t num_positions = read_size(vision, "num_position_embeddings", 2304, kMaxPositions, source);
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(num_positions))));
  if (side * side != num_positions) {
    throw config_error("{}: num_position_embeddings {} is not a square, but the position table must be", source,
                       num_positions);
  }
  return side;
}

VisionConfig read_vision_config(const json& vision, const Variant& variant, const LlamaConfig& text,
                                const std::string& source) {
  VisionConfig config;
  json config_with_defaults{{"depth", 27}, {"patch_size", 16}};
  if (!vision.empty()) config_with_defaults.update(vision);
  static_cast<qwen2_vl::VisionConfig&>(config) = qwen2_vl::read_common_vision_config(config_with_defaults, source);
  config.uses_qwen2_5_layers = false;
  config.first_linear_name = "linear_fc1";
  config.second_linear_name = "linear_fc2";
  config.has_patch_bias = true;
  config.hidden_size = io::get_or<int64_t>(vision, "hidden_size", 1152, source);
  config.intermediate_size = io::get_or<int64_t>(vision, "intermediate_size", 4304, source);
  config.out_hidden_size = io::get_or<int64_t>(vision, "out_hidden_size", 3584, source);
  config.activation = parse_activation(io::get_or<std::string>(vision, "hidden_act", "gelu_pytorch_tanh", source),
                                       "hidden_act", source);
  config.position_table_side = read_position_table_side(vision, source);
  qwen2_vl::check_vision_sizes(config, source);
  config.deepstack_block_indices =
      io::get_or<std::vector<int64_t>>(vision, "deepstack_visual_indexes", variant.deepstack_block_indices, source);
  const auto& blocks = config.deepstack_block_indices;
  if (!blocks.empty() && !variant.has_deepstack) {
    throw data_error("{}: deepstack_visual_indexes [{}]: {} has no DeepStack; the list must be empty", source,
                     fmt::join(blocks, ", "), variant.name);
  }
  if (std::ranges::adjacent_find(blocks, std::greater_equal()) != blocks.end() ||
      (!blocks.empty() && (blocks.front() < 0 || blocks.back() >= config.num_blocks))) {
    throw config_error("{}: deepstack_visual_indexes [{}] are not ascending blocks of the {} (depth)", source,
                       fmt::join(blocks, ", "), config.num_blocks);
  }
  if (std::ssize(blocks) > text.num_layers) {
    throw config_error(
        "{}: deepstack_visual_indexes has {} blocks, but the text model has only {} blocks to add their features to",
        source, blocks.size(), text.num_layers);
  }
  if (config.out_hidden_size != text.hidden_size) {
    throw data_error("{}: out_hidden_size is {}, but the text model's hidden_size is {}; they must be equal", source,
                     config.out_hidden_size, text.hidden_size);
  }
  return config;
}

}  // namespace

double VisionConfig::num_parameters() const {
  const double merged = static_cast<double>(hidden_size) * static_cast<double>(patches_per_token());
  const double num_merger_parameters = merged * (merged + static_cast<double>(out_hidden_size));
  const auto side = static_cast<double>(position_table_side);
  return qwen2_vl::VisionConfig::num_parameters() +
         static_cast<double>(deepstack_block_indices.size()) * num_merger_parameters +
         side * side * static_cast<double>(hidden_size);
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  const Variant& variant = find_variant(json_config);
  Config config;
  config.text = read_text_config(get_section(json_config, "text_config", source), variant, source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json_config, "tie_word_embeddings", false, source);
  config.vision = read_vision_config(get_section(json_config, "vision_config", source), variant, config.text,
                                     source + " (vision_config)");
  config.image_token_id =
      qwen2_vl::read_token_id(json_config, "image_token_id", variant.image_token_id, config.text, source);
  config.video_token_id =
      qwen2_vl::read_token_id(json_config, "video_token_id", variant.video_token_id, config.text, source);
  return config;
}

namespace {

/// Returns the markup of a video in the chat template. In the layout that the checkpoints were
/// trained with, time stamps and frames replace the whole block. In that of transformers 5, they
/// replace only the token within the block.
text::MediaMarkup make_video_markup(data::VideoTokenLayout layout) {
  const std::string block = qwen2_vl::format_vision_block(qwen2_vl::kVideoPad);
  return {.block = block,
          .token = layout == data::VideoTokenLayout::kReleasedCode ? block : std::string(qwen2_vl::kVideoPad)};
}

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  const auto images = qwen2_vl::read_image_settings(folder, config.vision, settings.image_max_pixels);
  const auto videos = VideoSettings::read(folder, config.vision, settings.image_max_pixels);
  warn_if_frame_rate_differs(folder, settings.video_fps);
  text::Tokenizer tokenizer = load_tokenizer(folder);
  text::ChatTemplate chat_template =
      load_chat_template(folder, tokenizer, settings,
                         {.fallback = "chatml",
                          .image_markup = {.block = qwen2_vl::format_vision_block(qwen2_vl::kImagePad),
                                           .token = std::string(qwen2_vl::kImagePad)},
                          .video_markup = make_video_markup(settings.video_layout)});
  return make_processor(config, images, videos, std::move(tokenizer), std::move(chat_template), settings);
}

constexpr int64_t kNumMarkerTokens = 2;  // <|vision_start|> and <|vision_end|>

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const auto settings = qwen2_vl::read_image_settings(folder, vision, max_pixels);
  const PatchFormat patches = vision.patch_format();
  auto shape = patches.make_sample_shape(patches.compute_grid(1, compute_resized_size(size, settings, vision)));
  shape.tokens += kNumMarkerTokens;
  return shape;
}

/// Returns the number of tokens of time stamps and markers. Exact if `folder` has a tokenizer.json;
/// otherwise counted as Qwen's tokenizer splits a time stamp: " seconds" is one token, and so is
/// each of the other characters.
int64_t count_timestamp_tokens(const std::vector<std::string>& timestamps, const std::filesystem::path& folder) {
  constexpr std::string_view kSecondsSuffix = " seconds";
  const auto file = folder / "tokenizer.json";
  if (std::filesystem::exists(file)) {
    return std::ssize(text::read_tokenizer(folder).encode(format_video_text(timestamps, 0)).ids);
  }
  int64_t tokens = 0;
  for (const std::string& timestamp : timestamps)
    tokens += std::ssize(timestamp) - std::ssize(kSecondsSuffix) + 1 + kNumMarkerTokens;
  return tokens;
}

data::SampleShape compute_video_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             const image::VideoInfo& video, const ProcessorSettings& settings) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  VideoSettings videos = VideoSettings::read(folder, vision, settings.image_max_pixels);
  videos.limits.max_frames = std::min(videos.limits.max_frames, settings.video_max_frames);
  const double fps = video.fps > 0 ? video.fps : settings.video_fps;
  const auto frame_indices = videos.select_frames(video, settings.video_fps);
  const auto frames = std::ssize(frame_indices);
  const auto resized = videos.compute_frame_size(frames, video.size, std::nullopt, vision);
  const PatchFormat patches = vision.patch_format();
  auto shape = patches.make_sample_shape(patches.compute_grid(frames, resized));
  shape.tokens += count_timestamp_tokens(make_timestamps(frame_indices, fps, vision.temporal_patch_size), folder);
  if (settings.video_layout == data::VideoTokenLayout::kTransformers5) shape.tokens += kNumMarkerTokens;
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = frames;
  return shape;
}

ProcessorOverrides make_processor_overrides(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const VisionConfig vision = Config::from_json(config_json, folder).vision;
  const auto& max_pixels = settings.image_max_pixels;
  const bool saves_video_sampling = has_videos || !has_default_video_sampling(settings);
  ProcessorOverrides overrides{.creates_video_config = saves_video_sampling,
                               .video_processor_type = "Qwen3VLVideoProcessor"};
  if (max_pixels) {
    overrides.edit_image_settings = [budget = qwen2_vl::read_image_settings(folder, vision, max_pixels).budget](
                                        auto& file) { qwen2_vl::write_pixel_budget(file, budget); };
  }
  if (!max_pixels && !saves_video_sampling) return overrides;
  const auto videos = VideoSettings::read(folder, vision, max_pixels);
  const nlohmann::ordered_json empty = nlohmann::ordered_json::object();
  if (nlohmann::ordered_json probe = empty;
      max_pixels && has_videos && !write_frame_pixel_limit(probe, videos, vision)) {
    overrides.unsaved_settings.push_back(fmt::format(
        "{}={}: for video frames, transformers' Qwen3VLVideoProcessor supports only multiples of {} pixels, at least "
        "1.05 times size.shortest_edge",
        keys::data::kImageMaxPixels, *max_pixels, vision.pixels_per_token_side() * vision.pixels_per_token_side()));
  }
  overrides.edit_video_settings = [=, fps = settings.video_fps, max_frames = settings.video_max_frames](auto& file) {
    if (max_pixels) write_frame_pixel_limit(file, videos, vision);
    if (saves_video_sampling) qwen2_vl::write_frame_sampling(file, videos.limits, fps, max_frames);
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
  Family family{.model_types = {},
                .build = build,
                .load_processor = load_processor,
                .compute_image_sample_shape = compute_image_sample_shape,
                .get_context_length = get_context_length,
                .num_parameters = num_parameters,
                .compute_video_sample_shape = compute_video_sample_shape,
                .make_processor_overrides = make_processor_overrides};
  for (const Variant& variant : get_variants()) {
    family.model_types.push_back(variant.model_type);
    family.unsupported_model_types.emplace_back(variant.moe_model_type, variant.moe_reason);
  }
  return family;
}

}  // namespace vlmtrain::models::qwen3_vl
