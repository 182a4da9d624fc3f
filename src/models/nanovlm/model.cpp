#include "models/nanovlm/model.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "models/network/pixel_shuffle.h"
#include "vlmtrain/image/normalize.h"

namespace vlmtrain::models::nanovlm {

using nn::Component;
using nn::ParameterScope;

namespace {

constexpr const char* kEmbeddingName = "decoder.token_embedding.weight";
constexpr const char* kOutputName = "decoder.head.weight";

/// ToTensor and no more: a byte becomes a number from 0 to 1.
constexpr image::Normalization kToUnitRange{.mean = {0, 0, 0}, .std = {1, 1, 1}, .rescale_factor = 1.0 / 255.0};

}  // namespace

Model::Model(Config config, const std::vector<std::string>& tensors, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      // safetensors' save_model keeps of tensors that share memory the one whose name comes first.
      stores_output_only_(config_.text.tie_word_embeddings &&
                          std::ranges::find(tensors, kEmbeddingName) == tensors.end()),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "vision_encoder"), config_.vision),
      projection_(ParameterScope(parameters(), Component::kProjector, "MP.proj"),
                  config_.vision.hidden_size * config_.scale_factor * config_.scale_factor, config_.text.hidden_size,
                  /*bias=*/false),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "decoder"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "decoder.head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_dense) const {
  const at::Tensor patches = tower_({vision.pixel_values, kToUnitRange}, recompute().vision);
  return {.features = projection_(pixel_shuffle(patches, config_.vision.patches_per_side(), config_.scale_factor)),
          .dense = with_dense ? patches : at::Tensor()};
}

ModelOutput Model::hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                 const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.hidden_states(batch, image_features, request, recompute().language_recompute(), cache);
}

std::string Model::checkpoint_name(const std::string& parameter) const {
  return stores_output_only_ && parameter == kEmbeddingName ? kOutputName : parameter;
}

void Model::complete_config(nlohmann::ordered_json& config) const {
  // nanoVLM's VLMConfig takes no key but its own.
  config.erase("dtype");
  config.erase("torch_dtype");
}

void Model::complete_weights(std::vector<std::pair<std::string, at::Tensor>>& weights) const {
  // A buffer of nanoVLM's, which it loads without asking whether it can compute it.
  weights.emplace_back("decoder.rotary_embd.inv_freq", config_.text.rope.frequencies(config_.text.head_dim));
}

}  // namespace vlmtrain::models::nanovlm
