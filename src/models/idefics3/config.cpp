#include "models/idefics3/config.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::idefics3 {

Config Config::from_json(const nlohmann::json& json, const std::string& source) {
  for (const char* section : {"vision_config", "text_config"}) {
    if (!json.contains(section) || !json[section].is_object()) {
      throw data_error("{}: has no section {}; is this an Idefics3 or SmolVLM checkpoint?", source, section);
    }
  }
  const auto& text = json["text_config"];
  const auto text_model_type = io::get_or<std::string>(text, "model_type", "llama", source);
  if (text_model_type != "llama") {
    throw data_error("{}: text model {} is not supported in Idefics3; llama is", source, text_model_type);
  }
  Config config;
  config.vision = read_idefics3_vision_config(json["vision_config"], source + " (vision_config)");
  config.text = LlamaConfig::from_json(text, source + " (text_config)");
  config.scale_factor = io::get_or<int64_t>(json, "scale_factor", config.scale_factor, source);
  config.image_token_id = io::get_or<int64_t>(json, "image_token_id", config.image_token_id, source);
  // transformers ignores tie_word_embeddings in text_config.
  config.text.tie_word_embeddings = io::get_or<bool>(json, "tie_word_embeddings", false, source);
  if (config.scale_factor < 1 || config.vision.patches_per_side() % config.scale_factor != 0) {
    throw data_error("{}: {} patches per side are not a multiple of scale_factor {}", source,
                     config.vision.patches_per_side(), config.scale_factor);
  }
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    throw data_error("{}: image_token_id {} is not in the vocabulary of {}", source, config.image_token_id,
                     config.text.vocab_size);
  }
  return config;
}

}  // namespace vlmtrain::models::idefics3
