#include "models/idefics3/model.h"

#include "models/network/patch_embedding.h"
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

using nn::Component;
using nn::ParameterScope;

Model::Model(Config config, image::Normalization normalization, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_model"), config_.vision),
      projection_(ParameterScope(parameters(), Component::kProjector, "model.connector.modality_projection.proj"),
                  config_.vision.hidden_size * config_.scale_factor * config_.scale_factor, config_.text.hidden_size,
                  /*bias=*/false),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.text_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute_block_counts().vision);
  return {.features = projection_(pixel_shuffle(patches, config_.vision.patches_per_side(), config_.scale_factor)),
          .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

}  // namespace vlmtrain::models::idefics3
