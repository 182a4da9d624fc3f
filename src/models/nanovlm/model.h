#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/nanovlm/config.h"
#include "models/network/llama/causal_llama.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::nanovlm {

/// SigLIP tower, pixel shuffle, one Linear and a Llama text model. Parameter names are those of nanoVLM's modules.
class Model final : public VisionLanguageModel {
 public:
  /// `tensors`: the names in the checkpoint; empty where there is none yet.
  Model(Config config, const std::vector<std::string>& tensors, nn::ParameterSettings settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }
  std::string checkpoint_name(const std::string& parameter) const override;
  void complete_config(nlohmann::ordered_json& config) const override;
  void complete_weights(std::vector<std::pair<std::string, at::Tensor>>& weights) const override;

 private:
  Config config_;
  bool stores_output_only_;  // of a tied embedding: under the output's name
  VisionTransformer tower_;
  nn::Linear projection_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::nanovlm
