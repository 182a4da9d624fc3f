#include "models/qwen3_vl/config.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::qwen3_vl {

using nlohmann::json;

namespace {

/// Returns transformers' defaults for Qwen3-VL that differ from those of a Qwen3 text model.
json make_default_text_config() {
  return {{"rope_theta", 500000.0}, {"max_position_embeddings", 128000}};
}

LlamaConfig read_text_config(const json& text_config, const std::string& source) {
  if (text_config.contains("num_experts")) {
    throw data_error(
        "{}: num_experts: a mixture of experts is not supported; the dense Qwen3-VL are 2B, 4B, 8B and 32B", source);
  }
  json text = make_default_text_config();
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
  // Interleaved sections: height uses pairs 1, 4, 7 …, width 2, 5, 8 …; the last one must exist.
  if (data::kNumPositionAxes * std::max(sections[1], sections[2]) > config.head_dim / 2) {
    throw data_error("{}: mrope_section [{}]: every third of {} pairs is too few for height and width", source,
                     fmt::join(sections, ", "), config.head_dim / 2);
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
    throw data_error("{}: num_position_embeddings {} is not a square, but the position table must be", source,
                     num_positions);
  }
  return side;
}

VisionConfig read_vision_config(const json& vision, const LlamaConfig& text, const std::string& source) {
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
      io::get_or<std::vector<int64_t>>(vision, "deepstack_visual_indexes", config.deepstack_block_indices, source);
  const auto& blocks = config.deepstack_block_indices;
  if (std::ranges::adjacent_find(blocks, std::greater_equal()) != blocks.end() ||
      (!blocks.empty() && (blocks.front() < 0 || blocks.back() >= config.num_blocks))) {
    throw data_error("{}: deepstack_visual_indexes [{}] are not ascending blocks of the {} (depth)", source,
                     fmt::join(blocks, ", "), config.num_blocks);
  }
  if (std::ssize(blocks) > text.num_layers) {
    throw data_error(
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
  Config config;
  config.text = read_text_config(get_section(json_config, "text_config", source), source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json_config, "tie_word_embeddings", false, source);
  config.vision =
      read_vision_config(get_section(json_config, "vision_config", source), config.text, source + " (vision_config)");
  config.image_token_id =
      qwen2_vl::read_token_id(json_config, "image_token_id", config.image_token_id, config.text, source);
  config.video_token_id =
      qwen2_vl::read_token_id(json_config, "video_token_id", config.video_token_id, config.text, source);
  return config;
}

}  // namespace vlmtrain::models::qwen3_vl
