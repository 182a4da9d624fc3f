#include "models/network/gemma_config.h"

#include <nlohmann/json.hpp>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

double GemmaConfig::num_parameters() const {
  double sum = 2.0 * static_cast<double>(vocab_size) * static_cast<double>(hidden_size);
  for (const GemmaLayerType type : layer_types) {
    const nn::HeadShape& heads = get_attention(type).heads;
    const int64_t key_value_projections = heads.has_value_projection ? 2 : 1;
    const double attention_width =
        static_cast<double>((2 * heads.num_heads + key_value_projections * heads.num_key_value_heads) * heads.head_dim);
    sum += static_cast<double>(hidden_size) * (attention_width + 3.0 * static_cast<double>(intermediate_size));
  }
  return sum;
}

void check_gemma_heads(const nn::HeadShape& heads, const std::string& source) {
  if (heads.num_heads % heads.num_key_value_heads != 0) {
    throw config_error("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source,
                       heads.num_heads, heads.num_key_value_heads);
  }
  check_size(heads.num_heads * heads.head_dim, "num_attention_heads · head_dim", kMaxLayerWidth, source);
  if (heads.head_dim % 2 != 0) {
    throw data_error("{}: head_dim {} is odd; RoPE needs an even one", source, heads.head_dim);
  }
}

int64_t read_gemma_token_id(const nlohmann::json& config, const char* key, int64_t fallback, int64_t vocab_size,
                            const std::string& source) {
  const auto id = io::get_or<int64_t>(config, key, fallback, source);
  if (id < 0 || id >= vocab_size) {
    throw config_error("{}: {} {} is not in the vocabulary of {} (text_config.vocab_size)", source, key, id,
                       vocab_size);
  }
  return id;
}

}  // namespace vlmtrain::models
