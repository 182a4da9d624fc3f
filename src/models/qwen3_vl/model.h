#pragma once

#include <vector>

#include "models/network/llama/causal_llama.h"
#include "models/qwen2_vl/weight_names.h"
#include "models/qwen3_vl/config.h"
#include "models/qwen3_vl/vision_tower.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::qwen3_vl {

/// Vision tower of native resolution, patch mergers and a Qwen3 text model with positions on three axes. The tower's
/// features reach the text model as tokens and, from earlier blocks, behind its first blocks (DeepStack).
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, image::Normalization normalization, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }

 private:
  Config config_;
  image::Normalization normalization_;
  VisionTower tower_;
  PatchMerger merger_;
  std::vector<PatchMerger> deepstack_mergers_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::qwen3_vl
