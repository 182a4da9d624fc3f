#include "models/qwen3_vl/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/checkpoints/size_limits.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::qwen3_vl {

namespace {

using nlohmann::json;

/// transformers' defaults, where they are not those of a Qwen3 text model.
json make_text_defaults() {
  return {{"rope_theta", 500000.0}, {"max_position_embeddings", 128000}};
}

LlamaConfig read_text(const json& text_config, const std::string& source) {
  if (text_config.contains("num_experts")) {
    throw data_error(
        "{}: num_experts: a mixture of experts is not supported; the dense Qwen3-VL are 2B, 4B, 8B and 32B", source);
  }
  json text = make_text_defaults();
  if (!text_config.empty()) text.update(text_config);
  text["model_type"] = "qwen3";
  const auto sections = qwen2_vl::extract_mrope_sections(text, {24, 20, 20}, source);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json rope = get_section(text, key, source);
    if (!rope.empty() && !io::get_or<bool>(rope, "mrope_interleaved", true, source)) {
      throw data_error("{}: {}.mrope_interleaved: false is not supported; Qwen3-VL's axes are interleaved", source,
                       key);
    }
  }
  LlamaConfig config = LlamaConfig::from_json(text, source);
  qwen2_vl::check_mrope_sections(sections, config.head_dim, source);
  // The last pairs of height and width, which are every third, have to be pairs of the head.
  if (data::kPositionAxes * std::max(sections[1], sections[2]) > config.head_dim / 2) {
    throw data_error("{}: mrope_section [{}]: every third of {} pairs does not give height and width so many", source,
                     fmt::join(sections, ", "), config.head_dim / 2);
  }
  config.rope.sections = sections;
  config.rope.interleaved = true;
  return config;
}

int64_t read_position_side(const json& vision, const std::string& source) {
  const int64_t num_positions = read_size(vision, "num_position_embeddings", 2304, kMaxPositions, source);
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(num_positions))));
  if (side * side != num_positions) {
    throw data_error("{}: num_position_embeddings {} is no square, but the table is one", source, num_positions);
  }
  return side;
}

VisionConfig read_vision(const json& vision, const LlamaConfig& text, const std::string& source) {
  VisionConfig config;
  json merged_config{{"depth", 27}, {"patch_size", 16}};
  if (!vision.empty()) merged_config.update(vision);
  static_cast<qwen2_vl::VisionConfig&>(config) = qwen2_vl::read_common_vision(merged_config, source);
  config.is_gated = false;
  config.first_linear = "linear_fc1";
  config.second_linear = "linear_fc2";
  config.patch_bias = true;
  config.hidden_size = io::get_or<int64_t>(vision, "hidden_size", 1152, source);
  config.intermediate_size = io::get_or<int64_t>(vision, "intermediate_size", 4304, source);
  config.output_size = io::get_or<int64_t>(vision, "out_hidden_size", 3584, source);
  config.activation = parse_activation(io::get_or<std::string>(vision, "hidden_act", "gelu_pytorch_tanh", source),
                                       "hidden_act", source);
  config.position_side = read_position_side(vision, source);
  qwen2_vl::check_sizes(config, source);
  config.deepstack_blocks =
      io::get_or<std::vector<int64_t>>(vision, "deepstack_visual_indexes", config.deepstack_blocks, source);
  const auto& blocks = config.deepstack_blocks;
  if (std::ranges::adjacent_find(blocks, std::greater_equal()) != blocks.end() ||
      (!blocks.empty() && (blocks.front() < 0 || blocks.back() >= config.blocks))) {
    throw data_error("{}: deepstack_visual_indexes [{}] are not ascending blocks of the {} (depth)", source,
                     fmt::join(blocks, ", "), config.blocks);
  }
  if (std::ssize(blocks) > text.layers) {
    throw data_error("{}: deepstack_visual_indexes has {} blocks, but the text model only {} to add them behind",
                     source, blocks.size(), text.layers);
  }
  if (config.output_size != text.hidden_size) {
    throw data_error("{}: out_hidden_size is {}, but the text model's hidden_size is {}; they must be equal", source,
                     config.output_size, text.hidden_size);
  }
  return config;
}

}  // namespace

double VisionConfig::num_parameters() const {
  const double merged = static_cast<double>(hidden_size) * static_cast<double>(patches_per_token());
  const double merger = merged * (merged + static_cast<double>(output_size));
  const auto side = static_cast<double>(position_side);
  return qwen2_vl::VisionConfig::num_parameters() + static_cast<double>(deepstack_blocks.size()) * merger +
         side * side * static_cast<double>(hidden_size);
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  Config config;
  config.text = read_text(get_section(json_config, "text_config", source), source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json_config, "tie_word_embeddings", false, source);
  config.vision =
      read_vision(get_section(json_config, "vision_config", source), config.text, source + " (vision_config)");
  config.image_token_id =
      qwen2_vl::read_token_id(json_config, "image_token_id", config.image_token_id, config.text, source);
  config.video_token_id =
      qwen2_vl::read_token_id(json_config, "video_token_id", config.video_token_id, config.text, source);
  return config;
}

}  // namespace vlmtrain::models::qwen3_vl
