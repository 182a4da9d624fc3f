#pragma once

#include "models/llava/config.h"
#include "models/llava/weight_names.h"
#include "models/network/llama/causal_llama.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::llava {

/// Two Linears with an activation between them.
class Projector {
 public:
  Projector(nn::ParameterStore& store, const Config& config);
  /// [rows, vision hidden] → [rows, text hidden]
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  Activation activation_;
  nn::Linear first_, second_;
};

/// Vision transformer, projector and text model.
class Model final : public VisionLanguageModel {
 public:
  /// `names`: how the checkpoint spells the parameters. `tower_is_apart`: its vision tower lies in config.tower_folder.
  Model(Config config, WeightNames names, bool tower_is_apart, image::Normalization normalization,
        const nn::ParameterSettings& settings);

  ImageFeatures image_features(const VisionInput& vision, bool with_dense) const override;
  ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                            const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t vision_blocks() const override { return tower_.blocks(); }
  int64_t language_blocks() const override { return text_.blocks(); }
  std::string checkpoint_name(const std::string& parameter) const override { return names_.spelled(parameter); }
  std::optional<WeightPlace> weight_elsewhere(const std::string& parameter) const override;
  void complete_config(nlohmann::ordered_json& config) const override;

 private:
  Config config_;
  WeightNames names_;
  bool tower_is_apart_;
  image::Normalization normalization_;
  VisionTransformer tower_;
  Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::llava
