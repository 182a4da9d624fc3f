#include "vlmtrain/engine/step_layout.h"

#include <algorithm>

namespace vlmtrain::engine {

namespace {

constexpr int64_t kSmallLossChunkRows = 256;

}  // namespace

int64_t StepLayout::count_extra_splits(const StepLayout& other) const {
  return split.micro_batches() - other.split.micro_batches();
}

std::optional<StepLayout> subdivide_micro_batches(StepLayout layout, int64_t failed_index, SubdivisionMode mode) {
  auto smaller = subdivide(layout.split, failed_index, mode);
  if (!smaller) return std::nullopt;
  layout.split = std::move(*smaller);
  return layout;
}

std::optional<StepLayout> disable_copy_ahead(StepLayout layout) {
  if (!layout.copies_ahead || layout.split.micro_batches() == 1) return std::nullopt;
  layout.copies_ahead = false;
  return layout;
}

std::optional<StepLayout> minimize_memory(StepLayout layout, const models::RecomputeBlocks& all_blocks) {
  const StepLayout original = layout;
  layout.recompute = all_blocks;
  layout.vision_tiles_per_pass = 1;
  layout.loss_chunk_rows = std::min(layout.loss_chunk_rows, kSmallLossChunkRows);
  layout.copies_ahead = false;
  return layout == original ? std::nullopt : std::optional{layout};
}

}  // namespace vlmtrain::engine
