#include "models/checkpoints/config_changes.h"

#include <nlohmann/json.hpp>

#include <array>
#include <string_view>

namespace vlmtrain::models {

namespace {

/// Where config.json describes the text model of a family, next to its top.
constexpr std::array kTextModels{"text_config", "llm_config", "language_config"};
constexpr std::array kVocabularies{"vocab_size", "lm_vocab_size"};

/// Calls `change` with the top of config.json and with each text model in it.
template <class Json, class Change>
void for_each_level(Json& config, const Change& change) {
  if (!config.is_object()) return;
  change(config);
  for (const char* name : kTextModels) {
    const auto found = config.find(name);
    if (found != config.end() && found->is_object()) change(*found);
  }
}

template <class Json>
void resize_vocabulary(Json& config, int64_t rows) {
  bool has_text_model = false;
  for_each_level(config, [&](Json& level) {
    const bool is_top = &level == &config;
    has_text_model |= !is_top;
    for (const char* name : kVocabularies) {
      if (level.contains(name)) level[name] = rows;
    }
    if (!is_top) level[kVocabularies.front()] = rows;  // else the default of its model type would count
  });
  if (!has_text_model && !config.contains(kVocabularies.back())) config[kVocabularies.front()] = rows;
}

}  // namespace

void set_vocabulary(nlohmann::json& config, int64_t rows) {
  resize_vocabulary(config, rows);
}
void set_vocabulary(nlohmann::ordered_json& config, int64_t rows) {
  resize_vocabulary(config, rows);
}

}  // namespace vlmtrain::models
