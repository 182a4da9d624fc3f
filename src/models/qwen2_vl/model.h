#pragma once

#include <span>
#include <string>

#include "models/network/llama.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/vision_tower.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::qwen2_vl {

/// Map from parameter names to checkpoint keys. Keys are either as published (`visual.blocks…`,
/// `model.layers…`), or as in transformers 5 (`model.visual.blocks…`,
/// `model.language_model.layers…`). The latter equal the parameter names.
class QwenKeyMap {
 public:
  /// Returns the map for a checkpoint with these tensors. Without tensors, keys are as published.
  static QwenKeyMap detect(std::span<const std::string> tensors);

  std::string to_checkpoint_key(const std::string& parameter) const;

 private:
  bool uses_published_keys_ = true;  // else as in transformers 5
};

/// Qwen2-VL and Qwen2.5-VL: vision tower for images of any resolution, patch merger and a Qwen2
/// text model with positions on three axes (time, height, width). Parameter names are those of
/// transformers 5.
class Model final : public VisionLanguageModel {
 public:
  /// Builds the model. `key_map` maps parameter names to checkpoint keys.
  Model(Config config, QwenKeyMap key_map, image::Normalization normalization, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override {
    return key_map_.to_checkpoint_key(parameter);
  }

 private:
  Config config_;
  QwenKeyMap key_map_;
  image::Normalization normalization_;
  VisionTower tower_;
  PatchMerger merger_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::qwen2_vl
