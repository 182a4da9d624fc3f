#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/gemma3/config.h"
#include "models/llava/model.h"
#include "models/network/block_list.h"
#include "models/network/vision_transformer.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/key_value_cache.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/norm.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/rotary.h"
#include "vlmtrain/nn/span_attention.h"

namespace vlmtrain::models::gemma3 {

/// What all blocks of a kind share in a forward pass.
struct LayerTypeContext {
  nn::SpanAttention attention;
  std::optional<int64_t> window;
  nn::RotaryTable rotary;
};

struct BlockContext {
  std::shared_ptr<const LayerTypeContext> layer_type;
  nn::KeyValueCache* cache = nullptr;  ///< in generation
  int64_t block = 0;                   ///< which of the cache's
};

/// Norms before and after each of its two sublayers, and of each head's query and key.
class Block {
 public:
  Block(const nn::ParameterScope& scope, const TextConfig& config);
  /// [tokens, hidden] → [tokens, hidden]
  at::Tensor operator()(const at::Tensor& x, const BlockContext& context) const;

 private:
  /// The heads' values of [tokens, query | key | value], [tokens, heads · head_dim].
  at::Tensor attend(const at::Tensor& qkv, const BlockContext& context) const;

  nn::HeadShape heads_;
  nn::Linears qkv_;
  nn::Linear out_proj_;
  nn::QkNorm head_norms_;
  nn::Linears gate_up_proj_;
  nn::Linear down_proj_;
  nn::RmsNorm before_attention_, after_attention_, before_mlp_, after_mlp_;
};

/// Gemma 3's text model with its output projection.
class TextModel {
 public:
  /// `output`: the place of the projection's weight, where `is_tied` does not make the embedding it. `image_tokens`:
  /// how many tokens an image has, which see each other both ways.
  TextModel(const nn::ParameterScope& scope, const TextConfig& config, int64_t image_tokens, bool is_tied,
            const nn::ParameterScope& output);

  /// See VisionLanguageModel::hidden_states.
  ModelOutput operator()(const data::MicroBatch& batch, const ImageFeatures& image_features,
                         const OutputRequest& request, const TowerRecompute& recomputed_blocks,
                         nn::KeyValueCache* cache) const;

  const at::Tensor& output_weight() const { return output_weight_; }
  int64_t blocks() const { return blocks_.size(); }

 private:
  /// The batch's tokens [tokens, hidden], those of images replaced by `image_features`.
  at::Tensor embed(const data::MicroBatch& batch, const at::Tensor& image_features) const;
  std::shared_ptr<const LayerTypeContext> make_context(LayerType type, const data::MicroBatch& batch) const;

  TextConfig config_;
  int64_t image_tokens_;
  at::Tensor embedding_;                               // [vocabulary, hidden]
  at::Tensor full_frequencies_, sliding_frequencies_;  // [head_dim / 2]
  BlockList<Block> blocks_;
  nn::RmsNorm norm_;
  at::Tensor output_weight_;  // [vocabulary, hidden]
};

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
