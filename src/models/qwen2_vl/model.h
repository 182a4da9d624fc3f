#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "models/network/block_list.h"
#include "models/network/llama.h"
#include "models/qwen2_vl/family.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/byte_images.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/norm.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::qwen2_vl {

/// Order and attention segments of the patches of a forward pass, computed on the host from the
/// grids. In the input, the merge_size² patches of a token are adjacent, and the tokens of a frame
/// are ordered row by row. In the tower, the tokens of a window are adjacent. The windows of a
/// frame are ordered row by row and truncated at its right and lower edge.
struct PatchLayout {
  // The first three are empty without windows.
  std::vector<int64_t> token_order;          ///< [tokens], input index of each token in the tower's order
  std::vector<int64_t> inverse_token_order;  ///< [tokens], tower index of each token in input order
  std::vector<int64_t> patch_order;          ///< [patches], input index of each patch in the tower's order
  /// [2 · patches], the rows of the patches in their frame, then their columns; in the tower's
  /// order.
  std::vector<int64_t> positions;
  std::vector<int64_t> frame_patch_counts;   ///< patches of each frame
  std::vector<int64_t> window_patch_counts;  ///< patches of each window; empty without windows

  /// Computes the layout of images and videos with these grids of patches. REQUIRES: rows and
  /// columns of each grid are multiples of merge_size.
  static PatchLayout make(std::span<const data::PatchGrid> grids, const VisionConfig& config);
};

/// LayerNorm of Qwen2-VL or RMSNorm of Qwen2.5-VL.
class Norm {
 public:
  Norm(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the normalized x [patches, hidden] as the input of Linears.
  nn::LinearInput make_linear_input(const at::Tensor& x) const;
  at::Tensor operator()(const at::Tensor& x) const { return make_linear_input(x).value(); }

 private:
  std::variant<nn::LayerNorm, nn::RmsNorm> norm_;
};

/// MLP of a block: two Linears with an activation between them, or gated (SwiGLU).
class VisionMlp {
 public:
  VisionMlp(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Returns the sum of the MLP's output and the residual stream, [patches, hidden]. `x` is a norm
  /// of the residual stream.
  at::Tensor operator()(const nn::LinearInput& x) const;

 private:
  bool is_gated_;
  Activation activation_;
  nn::MergedLinear gate_up_proj_;  // gate and up projection, or the first Linear of an MLP that is not gated
  nn::Linear down_proj_;
};

/// Positions and attention segments of a block's input.
struct VisionContext {
  nn::Segments segments;  ///< frames or windows
  nn::RotaryTable rotary_table;
};

/// A pre-norm transformer block.
class VisionBlock {
 public:
  VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Maps x [patches, hidden] → [patches, hidden].
  at::Tensor operator()(const at::Tensor& x, const VisionContext& context) const;

 private:
  /// Returns the heads' outputs: [patches, query | key | value] → [patches, hidden].
  at::Tensor attend(const at::Tensor& qkv, const VisionContext& context) const;

  nn::HeadShape head_shape_;
  Norm norm1_, norm2_;
  nn::Linear qkv_, out_proj_;
  VisionMlp mlp_;
};

/// Vision tower of Qwen2-VL and Qwen2.5-VL, without the merger. Frames attend to themselves only.
class VisionTower {
 public:
  VisionTower(const nn::ParameterScope& scope, const VisionConfig& config);

  /// Embeds patches: pixels [patches, 3, temporal_patch_size · patch_size, patch_size] in input
  /// order → [patches, hidden] in the tower's order (pixels.image_indices).
  at::Tensor embed(const image::ByteImages& pixels) const;
  /// Runs the blocks on the output of embed(). `layout` is that of its patches. `recomputed_blocks`
  /// blocks are recomputed in the backward pass. `options` selects further hidden states to return.
  BlockListOutputs operator()(const at::Tensor& embeddings, const PatchLayout& layout, int64_t recomputed_blocks,
                              const HiddenStateOptions& options = {}) const;
  int64_t num_blocks() const { return blocks_.size(); }

 private:
  VisionConfig config_;
  at::Tensor patch_weight_;  // convolution [hidden, 3, frames, patch, patch]; stride = kernel, so it is a Linear
  at::Tensor patch_bias_;    // [hidden], or undefined
  at::Tensor rotary_frequencies_, rotary_axes_;  // [head_dim / 2], the row's pairs first, then the column's
  BlockList<VisionBlock> blocks_;
};

/// Projector: merges merge_size² patches into one token by a norm and two Linears.
class PatchMerger {
 public:
  PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config);
  /// Maps patches [patches, hidden] → tokens [patches / merge_size², out_hidden_size].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  int64_t merged_hidden_size_;
  Norm norm_;
  nn::Linear fc1_, fc2_;
};

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
                                    const OutputRequest& request, nn::GenerationCache* cache) const override;
  nn::OutputProjection output_projection() const override { return text_.output_projection(); }
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
