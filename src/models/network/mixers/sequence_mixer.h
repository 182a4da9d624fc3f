#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/position_embedding.h"
#include "vlmtrain/nn/mixers/chunk_layout.h"

namespace vlmtrain::models {

/// The inputs of a block in a forward pass. All but `block` and the rotary table are the same for
/// all blocks.
struct MixerContext {
  nn::Segments samples;                   ///< of the packed batch; rows mix within their sample only
  nn::RotaryTable rotary_table;           ///< cosine and sine of each token
  std::optional<int64_t> sliding_window;  ///< as in LlamaConfig
  std::shared_ptr<const nn::ChunkLayout> chunk_layout = nullptr;  ///< of `samples`; null without gated delta nets
  nn::GenerationCache* cache = nullptr;                           ///< null except in generation
  int64_t block = 0;                                              ///< index of the block in the cache
};

/// The part of a text block that moves information between tokens, with its input and output
/// projections. Immutable.
class SequenceMixer {
 public:
  virtual ~SequenceMixer() = default;
  SequenceMixer(const SequenceMixer&) = delete;
  SequenceMixer& operator=(const SequenceMixer&) = delete;

  /// Maps x, a norm of the residual stream [tokens, hidden], and returns the stream plus the result,
  /// [tokens, hidden]. During generation, reads and updates context.cache.
  virtual at::Tensor operator()(const nn::LinearInput& x, const MixerContext& context) const = 0;

 protected:
  SequenceMixer() = default;
};

}  // namespace vlmtrain::models
