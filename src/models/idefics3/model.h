#pragma once

#include "models/idefics3/config.h"
#include "models/network/llama/causal_llama.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::idefics3 {

/// SigLIP tower, pixel-shuffle connector and Llama text model. Parameter names are those of transformers.
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::idefics3
