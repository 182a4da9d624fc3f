#pragma once

#include "models/brain_llava/config.h"
#include "models/llava/model.h"
#include "models/network/llama/causal_llama.h"
#include "models/network/volume_transformer/volume_transformer.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::brain_llava {

/// A tower of volumes, a pooling of its patches, LLaVA's projector, a text model. Rows of pixels are float or half
/// [rows, channels, x, y, z], normalised when they were read.
class Model final : public VisionLanguageModel {
 public:
  Model(const Config& config, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }

 private:
  Config config_;
  VolumeTransformer tower_;
  llava::Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::brain_llava
