#include "models/gemma3/model.h"

#include <ATen/TensorOperators.h>

#include <utility>
#include <vector>

#include "models/family.h"
#include "models/gemma3/processor.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::models::gemma3 {

using nn::Component;
using nn::ParameterScope;

Projector::Projector(const ParameterScope& scope, const Config& config)
    : tokens_per_side_(config.tokens_per_side),
      patches_per_token_(config.vision.patches_per_side() / config.tokens_per_side),
      norm_(scope / "mm_soft_emb_norm", config.vision.hidden_size, config.vision.layer_norm_eps,
            nn::NormGain::kOnePlusWeight),
      weight_(scope.add_parameter("mm_input_projection_weight", {config.vision.hidden_size, config.text.hidden_size},
                                  nn::InitialValues::kaiming(config.vision.hidden_size))) {}

at::Tensor Projector::operator()(const at::Tensor& patches) const {
  // [images, token row, y, token column, x, features]: averages the y and x of each token.
  const at::Tensor pooled_patches =
      patches.view({-1, tokens_per_side_, patches_per_token_, tokens_per_side_, patches_per_token_, patches.size(1)})
          .mean({2, 4})
          .view({-1, patches.size(1)});
  return nn::linear(norm_(pooled_patches), weight_.t(), /*bias=*/{});
}

Model::Model(Config config, StateDictKeyMap key_map, image::Normalization normalization, nn::ParameterSettings settings)
    : VisionLanguageModel(std::move(settings)),
      config_(std::move(config)),
      key_map_(std::move(key_map)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.vision_tower"), config_.vision),
      projector_(ParameterScope(parameters(), Component::kProjector, "model.multi_modal_projector"), config_),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            config_.tie_word_embeddings, ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const at::Tensor patches = tower_({vision.pixel_values, normalization_}, recompute_block_counts().vision);
  return {.features = projector_(patches), .patch_features = with_patch_features ? patches : at::Tensor()};
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  const int64_t num_images = batch.image_token_positions.numel() / config_.tokens_per_image();
  const std::vector<int64_t> tokens_per_image(static_cast<size_t>(num_images), config_.tokens_per_image());
  return text_(batch, image_features, tokens_per_image, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, (folder / "config.json").string());
  const auto key_map =
      llava::make_key_map(llava::CheckpointFormat::kHuggingFace, io::read_checkpoint_tensor_names(folder));
  return std::make_unique<Model>(config, key_map, ImageProcessorSettings::read(config, folder).normalization, settings);
}

}  // namespace vlmtrain::models::gemma3
