#pragma once

#include <algorithm>
#include <cstdint>

namespace vlmtrain::models {

/// How many blocks of a tower, counted from the input, run again in the backward pass instead of keeping their
/// activations.
struct TowerRecompute {
  // NOLINTNEXTLINE(google-explicit-constructor): a number says it where none of them keeps more than its input.
  TowerRecompute(int64_t all, int64_t with_attention = 0) : count(all), attention_kept(with_attention) {}

  int64_t count;
  int64_t attention_kept;  ///< of these, so many do not run their attention again (nn::RecomputeKeeps)
};

/// The same of a model.
struct RecomputeBlocks {
  int64_t vision = 0;
  int64_t language = 0;
  int64_t language_attention_kept = 0;  ///< of `language`

  TowerRecompute of_language() const { return {language, language_attention_kept}; }

  bool operator==(const RecomputeBlocks&) const = default;
};

/// At most those of a model that has `all`.
inline RecomputeBlocks within(const RecomputeBlocks& blocks, const RecomputeBlocks& all) {
  const int64_t language = std::min(blocks.language, all.language);
  return {.vision = std::min(blocks.vision, all.vision),
          .language = language,
          .language_attention_kept = std::min(blocks.language_attention_kept, language)};
}

}  // namespace vlmtrain::models
