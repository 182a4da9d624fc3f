#include "vlmtrain/models/model.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/family.h"
#include "models/nanovlm/family.h"
#include "models/network/layers.h"
#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models::nanovlm {

namespace {

using nn::Component;
using nn::ParameterScope;

constexpr const char* kEmbeddingWeightName = "decoder.token_embedding.weight";
constexpr const char* kOutputWeightName = "decoder.head.weight";

/// torchvision's ToTensor, which nanoVLM uses without normalization: maps bytes to the range from 0
/// to 1.
constexpr image::Normalization kUnitRangeNormalization{
    .mean = {0, 0, 0}, .std = {1, 1, 1}, .rescale_factor = 1.0 / 255.0};

/// nanoVLM: SigLIP tower, pixel shuffle, one Linear and a Llama text model. Parameter names are
/// those of nanoVLM's modules.
class Model final : public VisionLanguageModel {
 public:
  /// Builds the model. `tensors` are the tensor names of the checkpoint; empty without a
  /// checkpoint.
  Model(Config config, const std::vector<std::string>& tensors, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override;
  void add_saved_settings(nlohmann::ordered_json& config) const override;
  void add_computed_tables(std::vector<std::pair<std::string, at::Tensor>>& weights) const override;

 private:
  Config config_;
  bool stores_tied_weight_as_output_;  // the checkpoint has the tied embedding under the output projection's name
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

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
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
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

}  // namespace

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config, (folder / "config.json").string()),
                                 io::read_checkpoint_tensor_names(folder), settings);
}

}  // namespace vlmtrain::models::nanovlm
