#pragma once

#include "models/gemma3/config.h"
#include "models/gemma3/text_model.h"
#include "models/llava/weight_names.h"
#include "models/network/vision_transformer/vision_transformer.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::gemma3 {

/// From the tower's patches to tokens: means of squares of patches, a norm and a matrix.
class Projector {
 public:
  Projector(const nn::ParameterScope& scope, const Config& config);
  /// [images · patches, vision hidden] → [images · image tokens, text hidden]
  at::Tensor operator()(const at::Tensor& patches) const;

 private:
  int64_t tokens_per_side_, patches_per_token_;  // on a side
  nn::RmsNorm norm_;
  at::Tensor weight_;  // [vision hidden, text hidden]: a parameter of the module and no Linear, so LoRA has none of it
};

class Model final : public VisionLanguageModel {
 public:
  /// `key_map`: how the checkpoint spells the parameters, in which Gemma 3 is like LLaVA.
  Model(Config config, StateDictKeyMap key_map, image::Normalization normalization, nn::ParameterSettings settings);

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
  VisionTransformer tower_;
  Projector projector_;
  TextModel text_;
};

}  // namespace vlmtrain::models::gemma3
