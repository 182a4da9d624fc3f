#include "models/network/gemma/gemma_config.h"

#include <nlohmann/json.hpp>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

int64_t GemmaConfig::get_key_value_block(int64_t block) const {
  const int64_t first_reader = num_layers() - num_key_value_readers;
  if (block < first_reader) return block;
  int64_t source = first_reader - 1;
  while (source >= 0 && get_layer_type(source) != get_layer_type(block)) --source;
  VLMTRAIN_CHECK(source >= 0, "no block has keys and values for block {}", block);
  return source;
}

bool GemmaConfig::shares_key_value(int64_t block) const {
  for (int64_t reader = num_layers() - num_key_value_readers; reader < num_layers(); ++reader) {
    if (get_key_value_block(reader) == block) return true;
  }
  return false;
}

double GemmaConfig::num_parameters() const {
  const auto hidden = static_cast<double>(hidden_size);
  double sum = 2.0 * static_cast<double>(vocab_size) * hidden;
  for (int64_t block = 0; block < num_layers(); ++block) {
    const nn::HeadShape& heads = get_attention(get_layer_type(block)).heads;
    int64_t key_value_projections = heads.has_value_projection ? 2 : 1;
    if (get_key_value_block(block) != block) key_value_projections = 0;
    const double attention_width =
        static_cast<double>((2 * heads.num_heads + key_value_projections * heads.num_key_value_heads) * heads.head_dim);
    sum += hidden * (attention_width + 3.0 * static_cast<double>(get_intermediate_size(block)));
  }
  const auto per_layer_width = static_cast<double>(num_layers() * per_layer.features);
  return sum + per_layer_width * (static_cast<double>(per_layer.vocab_size) + 3.0 * hidden);
}

void check_gemma_heads(const nn::HeadShape& heads, const std::string& source) {
  if (heads.num_heads % heads.num_key_value_heads != 0) {
    throw config_error("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", source,
                       heads.num_heads, heads.num_key_value_heads);
  }
  check_size(heads.num_heads * heads.head_dim, "num_attention_heads · head_dim", kMaxLayerWidth, source);
  if (heads.head_dim % 2 != 0) {
    throw config_error("{}: head_dim {} is odd; RoPE needs an even one", source, heads.head_dim);
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
