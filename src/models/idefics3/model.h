#pragma once

#include <cstdint>

#include "models/idefics3/config.h"
#include "models/network/llama.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::idefics3 {

/// SigLIP tower, pixel-shuffle connector and Llama text model. Parameter names are those of
/// transformers.
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::idefics3
