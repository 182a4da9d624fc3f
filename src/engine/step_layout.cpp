#include "vlmtrain/engine/step_layout.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

constexpr int64_t kSmallLossChunk = 256;

}  // namespace

int64_t StepLayout::first_sample(int64_t micro_batch) const {
  return std::accumulate(micro_batches.begin(), micro_batches.begin() + micro_batch, int64_t{0});
}

int64_t StepLayout::splits_against(const StepLayout& other) const {
  return std::ssize(micro_batches) - std::ssize(other.micro_batches);
}

std::vector<int64_t> equal_micro_batches(int64_t samples, int64_t size) {
  VLMTRAIN_CHECK(size > 0, "micro-batches of {}", size);
  std::vector<int64_t> sizes;
  for (int64_t left = samples; left > 0; left -= size) sizes.push_back(std::min(left, size));
  return sizes;
}

std::vector<int64_t> micro_batches_of_runs(const std::vector<int64_t>& runs, int64_t size) {
  std::vector<int64_t> sizes;
  for (const int64_t run : runs) std::ranges::copy(equal_micro_batches(run, size), std::back_inserter(sizes));
  return sizes;
}

std::optional<StepLayout> with_smaller_micro_batches(StepLayout layout, int64_t failed, Cut cut) {
  const auto& sizes = layout.micro_batches;
  if (failed < 0) failed = std::distance(sizes.begin(), std::max_element(sizes.begin(), sizes.end()));
  const int64_t failed_size = sizes.at(static_cast<size_t>(failed));
  if (failed_size == 1 && cut != Cut::kSingles) return std::nullopt;
  std::vector<int64_t> smaller;
  for (int64_t i = 0; i < std::ssize(sizes); ++i) {
    const int64_t size = sizes[static_cast<size_t>(i)];
    if (cut == Cut::kSingles) {
      smaller.insert(smaller.end(), static_cast<size_t>(size), 1);
    } else if (i == failed || (cut == Cut::kAllAsLarge && size >= failed_size)) {
      smaller.push_back(size - size / 2);
      smaller.push_back(size / 2);
    } else {
      smaller.push_back(size);
    }
  }
  if (smaller == sizes) return std::nullopt;
  layout.micro_batches = std::move(smaller);
  return layout;
}

std::optional<StepLayout> with_least_memory(StepLayout layout, const models::RecomputeBlocks& all_blocks) {
  const StepLayout before = layout;
  layout.recompute = all_blocks;
  layout.vision_tiles_per_pass = 1;
  layout.loss_chunk_rows = std::min(layout.loss_chunk_rows, kSmallLossChunk);
  return layout == before ? std::nullopt : std::optional{layout};
}

}  // namespace vlmtrain::engine
