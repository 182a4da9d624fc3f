#pragma once

#include <algorithm>
#include <cstdint>

namespace vlmtrain::models {

/// How many blocks of a tower, counted from the input, run again in the backward pass instead of keeping their
/// activations.
struct TowerRecompute {
  // NOLINTNEXTLINE(google-explicit-constructor): a number says it where none of them keeps more than its input.
  TowerRecompute(int64_t num_blocks, int64_t num_selective_blocks = 0)
      : count(num_blocks), num_selective(num_selective_blocks) {}

  int64_t count;
  int64_t num_selective;  ///< of these, so many do not run their attention again (nn::CheckpointMode)
};

/// The same of a model.
struct RecomputeBlocks {
  int64_t vision = 0;
  int64_t language = 0;
  int64_t language_selective = 0;  ///< of `language`

  TowerRecompute language_recompute() const { return {language, language_selective}; }

  bool operator==(const RecomputeBlocks&) const = default;
};

/// At most those of a model that has `all`.
inline RecomputeBlocks clamp_blocks(const RecomputeBlocks& blocks, const RecomputeBlocks& model_blocks) {
  const int64_t language = std::min(blocks.language, model_blocks.language);
  return {.vision = std::min(blocks.vision, model_blocks.vision),
          .language = language,
          .language_selective = std::min(blocks.language_selective, language)};
}

}  // namespace vlmtrain::models
