#include "models/checkpoints/saved_config.h"

#include <nlohmann/json.hpp>

#include <array>
#include <string_view>

#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/tensor_names.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

namespace {

/// Sections of config.json that describe the text model, depending on the family.
constexpr std::array kTextSectionKeys{"text_config", "llm_config", "language_config"};
constexpr std::array kVocabSizeKeys{"vocab_size", "vocab_size_per_layer_input", "lm_vocab_size"};

/// Calls `function` with the top level of config.json and with each text model section.
template <class Json, class Function>
void for_each_config_level(Json& config, const Function& function) {
  if (!config.is_object()) return;
  function(config);
  for (const char* name : kTextSectionKeys) {
    const auto it = config.find(name);
    if (it != config.end() && it->is_object()) function(*it);
  }
}

template <class Json>
void update_vocab_size_keys(Json& config, int64_t rows) {
  bool has_text_model = false;
  for_each_config_level(config, [&](Json& level) {
    const bool is_top_level = &level == &config;
    has_text_model |= !is_top_level;
    for (const char* name : kVocabSizeKeys) {
      if (level.contains(name)) level[name] = rows;
    }
    // Without the key, transformers would use the default of the section's model type.
    if (!is_top_level) level[kVocabSizeKeys.front()] = rows;
  });
  if (!has_text_model && !config.contains(kVocabSizeKeys.back())) config[kVocabSizeKeys.front()] = rows;
}

const char* get_config_dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      throw InternalError("weights of an unknown dtype");
  }
}

}  // namespace

void set_vocab_size(nlohmann::json& config, int64_t rows) {
  update_vocab_size_keys(config, rows);
}
void set_vocab_size(nlohmann::ordered_json& config, int64_t rows) {
  update_vocab_size_keys(config, rows);
}

std::string make_saved_config(const VisionLanguageModel& model, const std::string& content, const std::string& source,
                              std::optional<at::ScalarType> dtype) {
  auto config = io::parse_ordered_json(content, source);
  // Older transformers releases write torch_dtype instead of dtype.
  if (dtype) config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = get_config_dtype_name(*dtype);
  erase_quantization_config(config);
  set_tied_output(config, has_tied_output(model));
  model.add_saved_settings(config);
  return io::to_json_string(config, 2) + "\n";
}

}  // namespace vlmtrain::models
