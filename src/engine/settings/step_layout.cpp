#include "vlmtrain/engine/settings/step_layout.h"

#include <algorithm>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

/// Returns 0, 1, …, count − 1.
std::vector<int64_t> make_index_range(int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

/// Half of the default. Smaller chunks save little, because the fp32 gradient of the output weight
/// is larger than their logits. Chosen without measurement.
constexpr int64_t kMinMemoryLossChunkRows = 256;

}  // namespace

std::span<const int64_t> MicroBatchSplit::get_sample_indices(int64_t index) const {
  const auto first = std::accumulate(sizes.begin(), sizes.begin() + index, int64_t{0});
  return std::span(order).subspan(static_cast<size_t>(first),
                                  static_cast<size_t>(sizes.at(static_cast<size_t>(index))));
}

MicroBatchSplit split_in_order(std::vector<int64_t> sizes) {
  auto order = make_index_range(std::reduce(sizes.begin(), sizes.end()));
  return {.order = std::move(order), .sizes = std::move(sizes)};
}

MicroBatchSplit split_evenly(int64_t samples, int64_t size, const SplitConstraint& constraint) {
  VLMTRAIN_CHECK(size > 0 && constraint.unit_size > 0 && samples % constraint.unit_size == 0,
                 "cannot split {} samples into micro-batches of {} with units of {}", samples, size,
                 constraint.unit_size);
  VLMTRAIN_CHECK(constraint.groups.empty() || std::ssize(constraint.groups) == samples,
                 "groups are given for {} samples, expected {}", constraint.groups.size(), samples);
  const auto get_unit_group = [&constraint](int64_t unit) {
    return constraint.groups.empty() ? 0 : constraint.groups[static_cast<size_t>(unit * constraint.unit_size)];
  };
  auto units = make_index_range(samples / constraint.unit_size);
  std::ranges::stable_sort(units, {}, get_unit_group);
  const int64_t max_size = std::max(size / constraint.unit_size, int64_t{1}) * constraint.unit_size;
  MicroBatchSplit split{.order = {}, .sizes = {}, .unit_size = constraint.unit_size};
  split.order.reserve(static_cast<size_t>(samples));
  for (size_t i = 0; i < units.size(); ++i) {
    const bool starts_micro_batch =
        i == 0 || split.sizes.back() == max_size || get_unit_group(units[i]) != get_unit_group(units[i - 1]);
    if (starts_micro_batch) split.sizes.push_back(0);
    split.sizes.back() += constraint.unit_size;
    for (int64_t sample = 0; sample < constraint.unit_size; ++sample)
      split.order.push_back(units[i] * constraint.unit_size + sample);
  }
  return split;
}

std::optional<MicroBatchSplit> subdivide_split(const MicroBatchSplit& split, int64_t failed_index,
                                               SubdivisionMode mode) {
  if (failed_index < 0) failed_index = std::distance(split.sizes.begin(), std::ranges::max_element(split.sizes));
  const int64_t failed_size = split.sizes.at(static_cast<size_t>(failed_index));
  if (failed_size == split.unit_size && mode != SubdivisionMode::kSingleSamples) return std::nullopt;
  MicroBatchSplit smaller_split{.order = split.order, .sizes = {}, .unit_size = split.unit_size};
  for (int64_t i = 0; i < split.num_micro_batches(); ++i) {
    const int64_t size = split.sizes[static_cast<size_t>(i)];
    if (mode == SubdivisionMode::kSingleSamples) {
      smaller_split.sizes.insert(smaller_split.sizes.end(), static_cast<size_t>(size / split.unit_size),
                                 split.unit_size);
    } else if (i == failed_index || (mode == SubdivisionMode::kAtLeastAsLarge && size >= failed_size)) {
      const int64_t half_size = size / split.unit_size / 2 * split.unit_size;
      smaller_split.sizes.push_back(size - half_size);
      smaller_split.sizes.push_back(half_size);
    } else {
      smaller_split.sizes.push_back(size);
    }
  }
  if (smaller_split == split) return std::nullopt;
  return smaller_split;
}

int64_t StepLayout::count_extra_micro_batches(const StepLayout& other) const {
  return split.num_micro_batches() - other.split.num_micro_batches();
}

std::optional<StepLayout> subdivide_micro_batches(StepLayout layout, int64_t failed_index, SubdivisionMode mode) {
  auto smaller_split = subdivide_split(layout.split, failed_index, mode);
  if (!smaller_split) return std::nullopt;
  layout.split = std::move(*smaller_split);
  return layout;
}

std::optional<StepLayout> disable_copy_ahead(StepLayout layout) {
  if (!layout.copies_ahead || layout.split.num_micro_batches() == 1) return std::nullopt;
  layout.copies_ahead = false;
  return layout;
}

std::optional<StepLayout> minimize_layout_memory(StepLayout layout, const models::RecomputeBlockCounts& all_blocks) {
  const StepLayout original_layout = layout;
  layout.recompute = all_blocks;
  layout.vision_tiles_per_pass = 1;
  layout.loss_chunk_rows = std::min(layout.loss_chunk_rows, kMinMemoryLossChunkRows);
  layout.copies_ahead = false;
  return layout == original_layout ? std::nullopt : std::optional{layout};
}

}  // namespace vlmtrain::engine
