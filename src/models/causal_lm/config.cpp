#include "models/causal_lm/config.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::causal_lm {

Config Config::from_json(const nlohmann::json& json, const std::string& source) {
  Config config;
  if (io::get<std::string>(json, "model_type", source) == "gemma3_text") {
    config.text = gemma3::TextConfig::from_json(json, source);
    config.tie_word_embeddings = io::get_or<bool>(json, "tie_word_embeddings", true, source);
    return config;
  }
  const auto text = LlamaConfig::from_json(json, source);
  config.text = text;
  config.tie_word_embeddings = text.tie_word_embeddings;
  return config;
}

int64_t Config::vocab_size() const {
  return std::visit([](const auto& config) { return config.vocab_size; }, text);
}

int64_t Config::max_positions() const {
  return std::visit([](const auto& config) { return config.max_positions; }, text);
}

double Config::num_parameters() const {
  return std::visit([](const auto& config) { return config.num_parameters(); }, text);
}

std::string_view choose_fallback_template(const Config& config, const text::Tokenizer& tokenizer) {
  const auto* const llama = std::get_if<LlamaConfig>(&config.text);
  if (llama == nullptr) return "gemma3";
  switch (llama->type) {
    case TextModelType::kLlama:
      return tokenizer.token_to_id("<|im_end|>") ? "chatml" : "llava_v1";
    case TextModelType::kMistral:
      return "mistral_instruct";
    case TextModelType::kQwen2:
    case TextModelType::kQwen3:
    case TextModelType::kSmolLm3:
      return "chatml";
  }
  throw InternalError("unknown text model");
}

}  // namespace vlmtrain::models::causal_lm
