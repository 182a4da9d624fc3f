#include "models/checkpoints/config_changes.h"

#include <nlohmann/json.hpp>

#include <array>
#include <string_view>

namespace vlmtrain::models {

namespace {

/// Where config.json describes the text model of a family, next to its top.
constexpr std::array kTextSections{"text_config", "llm_config", "language_config"};
constexpr std::array kVocabKeys{"vocab_size", "lm_vocab_size"};

/// Calls `function` with the top of config.json and with each text model in it.
template <class Json, class Function>
void for_each_level(Json& config, const Function& function) {
  if (!config.is_object()) return;
  function(config);
  for (const char* name : kTextSections) {
    const auto it = config.find(name);
    if (it != config.end() && it->is_object()) function(*it);
  }
}

template <class Json>
void write_vocab_size(Json& config, int64_t rows) {
  bool has_text_model = false;
  for_each_level(config, [&](Json& level) {
    const bool is_top = &level == &config;
    has_text_model |= !is_top;
    for (const char* name : kVocabKeys) {
      if (level.contains(name)) level[name] = rows;
    }
    if (!is_top) level[kVocabKeys.front()] = rows;  // else the default of its model type would count
  });
  if (!has_text_model && !config.contains(kVocabKeys.back())) config[kVocabKeys.front()] = rows;
}

}  // namespace

void set_vocab_size(nlohmann::json& config, int64_t rows) {
  write_vocab_size(config, rows);
}
void set_vocab_size(nlohmann::ordered_json& config, int64_t rows) {
  write_vocab_size(config, rows);
}

}  // namespace vlmtrain::models
