#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/gemma3/family.h"
#include "models/llava/model.h"
#include "models/network/gemma/gemma.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::gemma3 {

/// Projector from patches to image tokens: averages squares of patches, normalizes the means and
/// multiplies them by a matrix.
class Projector {
 public:
  Projector(const nn::ParameterScope& scope, const Config& config);
  /// Maps patches [images · patches, vision hidden] → [images · image tokens, text hidden]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t tokens_per_side_, patches_per_token_;  // both along one side of the image
  nn::RmsNorm norm_;
  at::Tensor weight_;  // [vision hidden, text hidden]; not a Linear, so LoRA does not adapt it
};

/// SigLIP tower, projector and Gemma 3 text model. Parameter names are those of transformers.
class Model final : public VisionLanguageModel {
 public:
  /// Builds the model. `key_map` maps parameter names to checkpoint keys (llava::make_key_map()).
  Model(Config config, StateDictKeyMap key_map, image::Normalization normalization, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override {
    return key_map_.to_checkpoint_key(parameter);
  }

 private:
  Config config_;
  StateDictKeyMap key_map_;
  image::Normalization normalization_;
  VisionTransformer tower_;
  Projector projector_;
  GemmaModel text_;
};

}  // namespace vlmtrain::models::gemma3
