#pragma once

#include "models/checkpoints/weight_spellings.h"
#include "models/internvl/config.h"
#include "models/internvl/vision_tower.h"
#include "models/network/llama/causal_llama.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::internvl {

/// Pixel shuffle, LayerNorm and two Linears with an activation between them.
class Projector {
 public:
  Projector(const nn::ParameterScope& scope, const Config& config);
  /// The tower's features of whole tiles [tiles · patches, vision hidden] → [tiles · image_tokens_per_tile, text
  /// hidden]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t side_, scale_factor_;
  Activation activation_;
  nn::LayerNorm norm_;
  nn::Linear first_, second_;
};

/// InternViT, projector and a Qwen2, Qwen3 or Llama text model. Parameter names are those of transformers 5's modules.
class Model final : public VisionLanguageModel {
 public:
  /// `key_map`: how the checkpoint spells the parameters.
  Model(Config config, StateDictKeyMap key_map, image::Normalization normalization,
        const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }
  std::string checkpoint_name(const std::string& parameter) const override {
    return key_map_.to_checkpoint_key(parameter);
  }

 private:
  Config config_;
  StateDictKeyMap key_map_;
  image::Normalization normalization_;
  VisionTower tower_;
  Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::internvl
