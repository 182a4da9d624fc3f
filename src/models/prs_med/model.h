#pragma once

#include <memory>

#include "models/llava/model.h"
#include "models/network/mask_decoder.h"
#include "models/network/mask_encoder.h"
#include "models/prs_med/config.h"

namespace vlmtrain::models::prs_med {

/// Projector from the hidden state of a mask token to a prompt of the mask decoder: two Linears
/// with a ReLU between them.
class MaskPromptProjector {
 public:
  MaskPromptProjector(const nn::ParameterScope& scope, int64_t hidden_size, int64_t channels);
  /// Returns the prompts: [masks, hidden] → [masks, channels].
  at::Tensor operator()(const at::Tensor& hidden) const;

 private:
  nn::Linear linear_1_, linear_2_;
};

/// PRS-Med: LLaVA with a mask encoder of the image and SAM's mask decoder, which fuses the
/// encoder's features with the hidden states of the mask tokens by attention in both directions.
class Model final : public llava::Model {
 public:
  Model(const Config& config, llava::ModelSpec llava, const nn::ParameterSettings& settings);

  bool predicts_masks() const override { return true; }
  at::Tensor compute_mask_logits(const data::MaskBatch& masks, const at::Tensor& hidden,
                                 int64_t images_per_pass) const override;
  /// Returns the number of blocks of mask encoder and vision tower. The encoder's are recomputed
  /// first, since their activations are by far the largest.
  int64_t num_vision_blocks() const override { return encoder_->num_blocks() + llava::Model::num_vision_blocks(); }

 private:
  int64_t count_recomputed_tower_blocks() const override;
  /// Encodes pixels, uint8 [images, 3, side, side], at most `images_per_pass` images at a time (0:
  /// all).
  at::Tensor encode(const at::Tensor& pixels, int64_t images_per_pass) const;

  std::unique_ptr<MaskImageEncoder> encoder_;
  MaskDecoder decoder_;
  MaskPromptProjector prompt_projector_;
};

}  // namespace vlmtrain::models::prs_med
