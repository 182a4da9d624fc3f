#include "vlmtrain/engine/step_layout.h"

#include <algorithm>

namespace vlmtrain::engine {

namespace {

constexpr int64_t kSmallLossChunk = 256;

}  // namespace

int64_t StepLayout::splits_against(const StepLayout& other) const {
  return cut.micro_batches() - other.cut.micro_batches();
}

std::optional<StepLayout> with_smaller_micro_batches(StepLayout layout, int64_t failed, Division division) {
  auto smaller = divided(layout.cut, failed, division);
  if (!smaller) return std::nullopt;
  layout.cut = std::move(*smaller);
  return layout;
}

std::optional<StepLayout> with_no_copies_ahead(StepLayout layout) {
  if (!layout.copies_ahead || layout.cut.micro_batches() == 1) return std::nullopt;
  layout.copies_ahead = false;
  return layout;
}

std::optional<StepLayout> with_least_memory(StepLayout layout, const models::RecomputeBlocks& all_blocks) {
  const StepLayout before = layout;
  layout.recompute = all_blocks;
  layout.vision_tiles_per_pass = 1;
  layout.loss_chunk_rows = std::min(layout.loss_chunk_rows, kSmallLossChunk);
  layout.copies_ahead = false;
  return layout == before ? std::nullopt : std::optional{layout};
}

}  // namespace vlmtrain::engine
