#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "models/network/config.h"
#include "models/network/gemma/gemma_config.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::causal_lm {

/// `config.json` of a text model without a vision tower, a …ForCausalLM of transformers: Llama and
/// its variants (LlamaConfig), or the text model of Gemma 3.
struct Config {
  std::variant<LlamaConfig, GemmaConfig> text;
  bool tie_word_embeddings = false;

  /// Parses config.json. `source` names the file in errors. Throws UserError (kBadData) with the
  /// key.
  static Config from_json(const nlohmann::json& json, const std::string& source);

  int64_t vocab_size() const;
  int64_t max_positions() const;
  double num_parameters() const;
};

/// Returns the name of the built-in chat template for a checkpoint without one. A base model of
/// type llama may have any tokens, so its tokenizer decides: ChatML's if it has them (SmolLM), else
/// Vicuna's.
std::string_view choose_fallback_template(const Config& config, const text::Tokenizer& tokenizer);

}  // namespace vlmtrain::models::causal_lm
