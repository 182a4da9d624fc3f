#pragma once

#include <ATen/core/Tensor.h>

#include "models/brain_llava/config.h"
#include "models/llava/model.h"
#include "models/network/llama.h"
#include "models/network/volume_transformer.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::brain_llava {

/// Returns the averaging matrix [tokens, patches] of PyTorch's adaptive_avg_pool3d, with `options`.
/// A matrix product has a fixed summation order, unlike the pooling's backward pass. REQUIRES: at
/// most as many tokens as patches along each axis.
at::Tensor make_pooling_matrix(const VolumeAxes& tokens, const VolumeAxes& patches, const at::TensorOptions& options);

/// Pools `features` [rows · patches, hidden] → [rows · tokens, hidden], volume by volume.
at::Tensor pool(const at::Tensor& features, const VolumeAxes& tokens, const VolumeAxes& patches);

/// A volume tower, pooling of its patches, LLaVA's projector and a text model. Rows of pixels are
/// float or half [rows, channels, x, y, z], normalized when read.
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
