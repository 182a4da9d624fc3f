#pragma once

#include <ATen/core/Tensor.h>

#include "models/brain_llava/config.h"
#include "models/llava/model.h"
#include "models/network/llama.h"
#include "models/network/volume_transformer.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::brain_llava {

/// Returns the matrix [tokens, patches] whose product with a volume's patches equals PyTorch's
/// adaptive_avg_pool3d, with dtype and device of `options`. The product has a fixed summation
/// order, unlike the backward pass of adaptive_avg_pool3d. `tokens` and `patches` are numbers along
/// each axis. REQUIRES: at most as many tokens as patches along each axis.
at::Tensor make_pooling_matrix(const VolumeShape& tokens, const VolumeShape& patches, const at::TensorOptions& options);

/// Averages the patches of each volume: `features` [volumes · patches, hidden] → [volumes · tokens,
/// hidden], with tokens and patches per volume.
at::Tensor pool_patches(const at::Tensor& features, const VolumeShape& tokens, const VolumeShape& patches);

/// Model of a volume tower, pooling of its patches, LLaVA's projector and a text model. Its pixel
/// values are float or half [volumes, channels, x, y, z]; they are normalized when a volume is
/// read.
class Model final : public VisionLanguageModel {
 public:
  Model(const Config& config, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const override;
  const at::Tensor& output_weight() const override { return text_.output_weight(); }
  int64_t num_vision_blocks() const override { return tower_.num_blocks(); }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }

 private:
  Config config_;
  VolumeTransformer tower_;
  llava::Projector projector_;
  CausalLlama text_;
};

}  // namespace vlmtrain::models::brain_llava
