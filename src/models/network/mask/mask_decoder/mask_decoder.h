#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "models/network/mask/mask_decoder/two_way_transformer.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// Sizes of SAM's mask decoder; the defaults are those of all its published checkpoints.
struct MaskDecoderConfig {
  TwoWayTransformerConfig transformer = {};
  int64_t mask_tokens = 4;  ///< of which the first draws the mask that is asked for alone

  int64_t hidden_size() const { return transformer.hidden_size; }

  /// Reads transformers' SamMaskDecoderConfig. `source` names the file in errors.
  static MaskDecoderConfig from_json(const nlohmann::json& config, const std::string& source);

  /// About how many parameters it has.
  double num_parameters() const;
};

/// A transposed convolution whose stride is its kernel, 2: each pixel becomes four, each by a Linear of its own. Names
/// and shapes of torch.nn.ConvTranspose2d.
class ConvTranspose2x2 {
 public:
  ConvTranspose2x2(const nn::ParameterScope& scope, int64_t in_channels, int64_t out_channels);
  /// [pixels, in] → [pixels · 4, out]: of each pixel those in its upper row, then those in its lower
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;  // [in, out, 2, 2]
  at::Tensor bias_;    // [out]
};

/// SAM's mask decoder (Kirillov et al. 2023, arXiv 2304.02643) as far as it draws one mask for each prompt, with what
/// its prompt encoder adds to pictures without mask prompts. Names below the scope are those of transformers' SamModel:
/// `mask_decoder`, `prompt_encoder`, `shared_image_embedding`.
class MaskDecoder {
 public:
  MaskDecoder(const nn::ParameterScope& scope, const MaskDecoderConfig& config);

  /// `features` [pictures · side², hidden] as MaskEncoder's; `prompts` [masks, hidden]; `image_indices` int64
  /// [masks] on the device: which features each mask is drawn on → logits fp32 [masks, 4 · side, 4 · side].
  /// REQUIRES: at least one mask.
  at::Tensor operator()(const at::Tensor& features, int64_t side, const at::Tensor& prompts,
                        const at::Tensor& image_indices) const;

 private:
  at::Tensor compute_positions(int64_t side, const at::TensorOptions& options) const;
  at::Tensor upscale(const at::Tensor& x) const;
  at::Tensor compute_mask_weights(const at::Tensor& x) const;

  at::Tensor frequencies_;  // [2, hidden / 2]: across, down
  at::Tensor no_mask_;      // [1, hidden]
  at::Tensor iou_token_;    // [1, hidden]; tokens of masks see it
  at::Tensor mask_tokens_;  // [mask tokens, hidden]
  TwoWayTransformer transformer_;
  ConvTranspose2x2 upscale1_;
  nn::LayerNorm upscale_norm_;
  ConvTranspose2x2 upscale2_;
  nn::Linear proj_in_, layer_, proj_out_;  // of the first mask token
};

}  // namespace vlmtrain::models
