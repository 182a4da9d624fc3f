#include "models/nanovlm/model.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "models/family.h"
#include "models/network/layers.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::nanovlm {

using nn::Component;
using nn::ParameterScope;

namespace {

constexpr const char* kEmbeddingWeightName = "decoder.token_embedding.weight";
constexpr const char* kOutputWeightName = "decoder.head.weight";

/// torchvision's ToTensor, which nanoVLM uses without normalization: maps bytes to the range from 0
/// to 1.
constexpr image::Normalization kUnitRangeNormalization{
    .mean = {0, 0, 0}, .std = {1, 1, 1}, .rescale_factor = 1.0 / 255.0};

}  // namespace

Model::Model(Config config, const std::vector<std::string>& tensors, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      // save_model of safetensors, which nanoVLM calls, stores only one of several tensors that
      // share memory, the alphabetically first: decoder.head before decoder.token_embedding.
      stores_tied_weight_as_output_(config_.text.tie_word_embeddings &&
                                    std::ranges::find(tensors, kEmbeddingWeightName) == tensors.end()),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "vision_encoder"), config_.vision),
      projection_(ParameterScope(parameters(), Component::kProjector, "MP.proj"),
                  config_.vision.hidden_size * config_.scale_factor * config_.scale_factor, config_.text.hidden_size,
                  /*bias=*/false),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "decoder"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "decoder.head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, kUnitRangeNormalization}, recompute_block_counts().vision);
  return {.features = projection_(pixel_shuffle(patches, config_.vision.patches_per_side(), config_.scale_factor)),
          .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::string Model::get_checkpoint_tensor_name(const std::string& parameter) const {
  return stores_tied_weight_as_output_ && parameter == kEmbeddingWeightName ? kOutputWeightName : parameter;
}

void Model::add_saved_settings(nlohmann::ordered_json& config) const {
  // nanoVLM's VLMConfig rejects unknown keys.
  config.erase("dtype");
  config.erase("torch_dtype");
}

void Model::add_computed_tables(std::vector<std::pair<std::string, at::Tensor>>& weights) const {
  // nanoVLM loads strictly, so it requires this buffer although it computes it.
  weights.emplace_back("decoder.rotary_embd.inv_freq", config_.text.rope.compute_frequencies(config_.text.head_dim));
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config, (folder / "config.json").string()),
                                 io::read_checkpoint_tensor_names(folder), settings);
}

}  // namespace vlmtrain::models::nanovlm
