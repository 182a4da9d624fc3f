#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/gemma4/family.h"
#include "models/gemma4/vision_tower.h"
#include "models/network/gemma/gemma.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/convolution.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"

namespace vlmtrain::models::gemma4 {

/// The embedding of patches of gemma4_unified, which has no tower: norms, a Linear and the sum of two
/// position embeddings (Gemma4UnifiedVisionEmbedder).
class PatchEmbedder {
 public:
  PatchEmbedder(const nn::ParameterScope& scope, const PatchEmbedderConfig& config, const PatchShape& patches);
  /// Maps pixels [patches, 3, side, side] of `grids` → [patches, embed_dim]
  at::Tensor operator()(const image::ByteImages& pixels, std::span<const data::PatchGrid> grids) const;

 private:
  PatchFormat patch_format_;
  nn::LayerNorm pixel_norm_;
  nn::Linear projection_;
  nn::LayerNorm patch_norm_;
  at::Tensor position_table_;  // [num_positions, 2, embed_dim]: by column, by row
  nn::LayerNorm position_norm_;
};

/// Gemma 4: a vision tower or an embedding of patches, a projector and the text model. Parameter
/// names are those of transformers' modules.
class Model final : public VisionLanguageModel {
 public:
  Model(Config config, const nn::ParameterSettings& settings);

  ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const override;
  ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
  int64_t num_vision_blocks() const override { return tower_ ? tower_->num_blocks() : 0; }
  int64_t num_language_blocks() const override { return text_.num_blocks(); }
  std::string get_checkpoint_tensor_name(const std::string& parameter) const override;

 private:
  /// Returns the batch with the padding token in place of media tokens, which a model may generate.
  /// transformers embeds them so.
  data::MicroBatch replace_generated_media(data::MicroBatch batch) const;

  Config config_;
  double projector_norm_eps_;
  std::optional<VisionTower> tower_;  // one of the two exists
  std::optional<PatchEmbedder> embedder_;
  nn::Linear projection_;
  GemmaModel text_;
};

}  // namespace vlmtrain::models::gemma4
