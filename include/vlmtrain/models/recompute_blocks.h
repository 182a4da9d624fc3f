#pragma once

#include <algorithm>
#include <cstdint>

namespace vlmtrain::models {

/// Activation checkpointing of a tower: the number of blocks, from the input on, that are
/// recomputed in the backward pass.
struct TowerRecompute {
  // NOLINTNEXTLINE(google-explicit-constructor): a plain number means that no block keeps its attention output.
  TowerRecompute(int64_t num_blocks, int64_t num_selective_blocks = 0)
      : count(num_blocks), num_selective(num_selective_blocks) {}

  int64_t count;          ///< recomputed blocks
  int64_t num_selective;  ///< those of `count` that keep their attention output (nn::CheckpointMode)
};

/// Activation checkpointing of a model: the number of recomputed blocks of each tower, from the
/// input on.
struct RecomputeBlocks {
  int64_t vision = 0;
  int64_t language = 0;
  int64_t language_selective = 0;  ///< those of `language` that keep their attention output

  TowerRecompute language_recompute() const { return {language, language_selective}; }

  bool operator==(const RecomputeBlocks&) const = default;
};

/// Returns `blocks` limited to the number of blocks of a model.
inline RecomputeBlocks clamp_blocks(const RecomputeBlocks& blocks, const RecomputeBlocks& model_blocks) {
  const int64_t language = std::min(blocks.language, model_blocks.language);
  return {.vision = std::min(blocks.vision, model_blocks.vision),
          .language = language,
          .language_selective = std::min(blocks.language_selective, language)};
}

}  // namespace vlmtrain::models
