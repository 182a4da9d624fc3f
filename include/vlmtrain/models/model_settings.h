#pragma once

#include <algorithm>
#include <cstdint>

namespace vlmtrain::models {

/// Activation checkpointing of a tower: the number of blocks, from the input on, that are
/// recomputed in the backward pass.
struct TowerRecomputeCounts {
  // NOLINTNEXTLINE(google-explicit-constructor): a plain number means that no block keeps its attention output.
  TowerRecomputeCounts(int64_t recomputed, int64_t selective = 0)
      : num_recomputed_blocks(recomputed), num_selective_blocks(selective) {}

  int64_t num_recomputed_blocks;  ///< including the selective ones
  int64_t num_selective_blocks;   ///< recomputed blocks that keep their attention output (nn::CheckpointMode)
};

/// Activation checkpointing of a model: the number of recomputed blocks of each tower, from the
/// input on.
struct RecomputeBlockCounts {
  int64_t vision = 0;
  int64_t language = 0;
  int64_t language_selective = 0;  ///< those of `language` that keep their attention output

  TowerRecomputeCounts language_counts() const { return {language, language_selective}; }

  bool operator==(const RecomputeBlockCounts&) const = default;
};

/// Returns `blocks` limited to the number of blocks of a model.
inline RecomputeBlockCounts clamp_recompute_counts(const RecomputeBlockCounts& blocks,
                                                   const RecomputeBlockCounts& model_blocks) {
  const int64_t language = std::min(blocks.language, model_blocks.language);
  return {.vision = std::min(blocks.vision, model_blocks.vision),
          .language = language,
          .language_selective = std::min(blocks.language_selective, language)};
}

/// The parts of a model that are frozen.
struct FrozenParts {
  bool vision_tower = false;
  bool projector = false;
  bool language_model = false;        ///< including embedding and output projection
  bool per_layer_embeddings = false;  ///< only their table, which language_model includes
  bool mask_encoder = false;          ///< ignored by families that predict no masks
};

}  // namespace vlmtrain::models
