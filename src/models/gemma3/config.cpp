#include "models/gemma3/config.h"

#include <cmath>
#include <optional>
#include <utility>

#include "models/checkpoints/attention_dropout.h"
#include "models/checkpoints/size_limits.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::gemma3 {

namespace {

using nlohmann::json;

constexpr NumberRange kScoreDivisors{0, 1e6};

void refuse_unless_absent(const json& text, const char* key, const std::string& source) {
  const auto found = text.find(key);
  if (found == text.end() || found->is_null() || *found == false || *found == 0) return;
  throw data_error("{}: {} is {}, which is not supported; Gemma 3's checkpoints have null, false or 0 there", source,
                   key, found->dump());
}

BlockKind kind_of(const std::string& name, const std::string& source) {
  if (name == "full_attention") return BlockKind::kFull;
  if (name == "sliding_attention") return BlockKind::kSliding;
  throw data_error("{}: layer_types: {} is not supported; full_attention and sliding_attention are", source, name);
}

/// `layer_types` (transformers 5), else every `sliding_window_pattern`-th block is a full one.
std::vector<BlockKind> read_blocks(const json& text, const std::string& source) {
  const int64_t layers = size_of(text, "num_hidden_layers", 26, kMostBlocks, source);
  const int64_t pattern = size_of(text, "sliding_window_pattern", 6, kMostBlocks, source);
  std::vector<BlockKind> blocks;
  const auto types = io::get_or<std::vector<std::string>>(text, "layer_types", {}, source);
  if (types.empty()) {
    for (int64_t i = 0; i < layers; ++i) {
      blocks.push_back((i + 1) % pattern == 0 ? BlockKind::kFull : BlockKind::kSliding);
    }
    return blocks;
  }
  if (std::ssize(types) != layers) {
    throw data_error("{}: layer_types names {} blocks, but num_hidden_layers is {}", source, types.size(), layers);
  }
  for (const auto& type : types) blocks.push_back(kind_of(type, source));
  return blocks;
}

/// One kind's section of `rope_parameters`, as transformers 5 writes it.
struct RopeSection {
  const char* section;
  const char* older_theta;  ///< the key of transformers 4
  double theta;
};

RopeConfig read_rope(const json& text, const RopeSection& kind, const json& scaling, const std::string& source) {
  const json all = section_of(text, "rope_parameters", source);
  const std::string place = source + " (rope_parameters)";
  json own = section_of(all, kind.section, place);
  // transformers lets the older key count where both are there.
  if (!scaling.empty()) own.update(scaling);
  if (!own.contains("rope_theta"))
    own["rope_theta"] = number_of(text, kind.older_theta, kind.theta, kRopeThetas, source);
  RopeConfig rope = RopeConfig::from_json({{"rope_parameters", std::move(own)}}, place + "." + kind.section);
  if (rope.type != RopeType::kDefault && rope.type != RopeType::kLinear) {
    throw data_error("{}: rope of {} is neither default nor linear, as Gemma 3's is; others are not supported", source,
                     kind.section);
  }
  return rope;
}

void read_ropes(const json& text, TextConfig& config, const std::string& source) {
  const json all = section_of(text, "rope_parameters", source);
  for (const auto& [key, value] : all.items()) {
    if (key == "full_attention" || key == "sliding_attention") continue;
    throw data_error("{}: rope_parameters.{}: Gemma 3 has the sections full_attention and sliding_attention there",
                     source, key);
  }
  config.full_rope =
      read_rope(text, {"full_attention", "rope_theta", 1e6}, section_of(text, "rope_scaling", source), source);
  config.sliding_rope = read_rope(text, {"sliding_attention", "rope_local_base_freq", 1e4}, json::object(), source);
}

int64_t read_tokens_per_side(const json& config, const VisionTransformerConfig& vision, const std::string& source) {
  const int64_t patches = vision.patches_per_side();
  const int64_t tokens = size_of(config, "mm_tokens_per_image", 256, kMostPositions, source);
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(tokens))));
  if (side * side != tokens || patches % side != 0) {
    throw data_error(
        "{}: mm_tokens_per_image {} is no square whose side divides the {} patches on a side of the vision tower's",
        source, tokens, patches);
  }
  return side;
}

int64_t read_token(const json& config, const char* key, const char* newer, int64_t fallback, int64_t vocab_size,
                   const std::string& source) {
  const char* const used = config.contains(key) ? key : newer;
  const auto id = io::get_or<int64_t>(config, used, fallback, source);
  if (id < 0 || id >= vocab_size) {
    throw data_error(
        "{}: {} {} is not in the vocabulary of {} (text_config.vocab_size); take the checkpoint's own file", source,
        used, id, vocab_size);
  }
  return id;
}

}  // namespace

TextConfig TextConfig::from_json(const json& text, const std::string& source) {
  TextConfig config;
  const auto type = io::get_or<std::string>(text, "model_type", "gemma3_text", source);
  if (type != "gemma3_text") {
    throw data_error("{}: text model {} is not supported in Gemma 3; gemma3_text is", source, type);
  }
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention",
                          "num_experts", "num_local_experts", "attention_bias"}) {
    refuse_unless_absent(text, key, source);
  }
  refuse_attention_dropout(text, source);
  const auto activation = io::get_or<std::string>(text, "hidden_activation", "gelu_pytorch_tanh", source);
  if (activation != "gelu_pytorch_tanh") {
    throw data_error("{}: hidden_activation {} is not supported; gelu_pytorch_tanh is", source, activation);
  }
  config.vocab_size = size_of(text, "vocab_size", config.vocab_size, kMostTokens, source);
  config.max_positions = size_of(text, "max_position_embeddings", config.max_positions, kMostPositions, source);
  config.hidden_size = size_of(text, "hidden_size", config.hidden_size, kWidestLayer, source);
  config.intermediate_size = size_of(text, "intermediate_size", config.intermediate_size, kWidestLayer, source);
  config.heads = size_of(text, "num_attention_heads", config.heads, kWidestLayer, source);
  config.key_value_heads = size_of(text, "num_key_value_heads", config.key_value_heads, kWidestLayer, source);
  if (config.heads % config.key_value_heads != 0) {
    throw data_error("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source, config.heads,
                     config.key_value_heads);
  }
  config.head_dim = size_of(text, "head_dim", config.head_dim, kWidestLayer, source);
  check_size(config.heads * config.head_dim, "num_attention_heads · head_dim", kWidestLayer, source);
  if (config.head_dim % 2 != 0) {
    throw data_error("{}: heads of {} features cannot be rotated; head_dim is even", source, config.head_dim);
  }
  config.rms_norm_eps = number_of(text, "rms_norm_eps", config.rms_norm_eps, kNormEpsilons, source);
  config.query_pre_attn_scalar =
      number_of(text, "query_pre_attn_scalar", config.query_pre_attn_scalar, kScoreDivisors, source);
  config.sliding_window = size_of(text, "sliding_window", config.sliding_window, kMostPositions, source);
  config.blocks = read_blocks(text, source);
  read_ropes(text, config, source);
  return config;
}

double TextConfig::elements() const {
  const double attention = 2.0 * static_cast<double>(heads + key_value_heads) * static_cast<double>(head_dim);
  const double block = static_cast<double>(hidden_size) * (attention + 3.0 * static_cast<double>(intermediate_size));
  return static_cast<double>(layers()) * block +
         2.0 * static_cast<double>(vocab_size) * static_cast<double>(hidden_size);
}

Config Config::from_json(const json& given, const std::string& source) {
  Config config;
  config.text = TextConfig::from_json(section_of(given, "text_config", source), source + " (text_config)");
  const json vision = section_of(given, "vision_config", source);
  const std::string place = source + " (vision_config)";
  const auto tower = io::get_or<std::string>(vision, "model_type", "siglip_vision_model", place);
  if (tower != "siglip_vision_model") {
    throw data_error("{}: vision tower {} is not supported in Gemma 3; siglip_vision_model is", place, tower);
  }
  config.vision = siglip_config(vision, place);
  config.tie_word_embeddings = io::get_or<bool>(given, "tie_word_embeddings", true, source);
  config.tokens_per_side = read_tokens_per_side(given, config.vision, source);
  const int64_t tokens = config.text.vocab_size;
  config.image_token_id =
      read_token(given, "image_token_index", "image_token_id", config.image_token_id, tokens, source);
  config.start_token_id = read_token(given, "boi_token_index", "boi_token_id", config.start_token_id, tokens, source);
  config.end_token_id = read_token(given, "eoi_token_index", "eoi_token_id", config.end_token_id, tokens, source);
  return config;
}

}  // namespace vlmtrain::models::gemma3
