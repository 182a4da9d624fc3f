#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "engine/optimizer/adamw_entry.h"
#include "engine/optimizer/compressed_states.h"

namespace vlmtrain::engine {

namespace {

/// Maximum number of blocks of a group. ATen's kernels index bytes with 32 bits. In a larger group,
/// both moments of a chunk would be further apart, so each operation on both would take two
/// launches.
constexpr int64_t kMaxGroupBlocks = (int64_t{1} << 30) / kBlockElements;

}  // namespace

void AdamW::make_compressed_groups(const at::TensorOptions& options) {
  std::map<std::pair<nn::Component, bool>, std::vector<size_t>> entries;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].is_compressed()) entries[{entries_[i].component, entries_[i].has_weight_decay}].push_back(i);
  }
  int64_t max_group_blocks = 0, all_blocks = 0;
  std::vector<std::vector<int64_t>> elements;
  for (const auto& [key, members] : entries) {
    int64_t blocks = kMaxGroupBlocks + 1;  // blocks of the group so far; too many, so the first tensor starts a group
    for (const size_t entry : members) {
      const int64_t size = entries_[entry].master.numel();
      blocks += CompressedStates::count_blocks(size);
      all_blocks += CompressedStates::count_blocks(size);
      if (blocks > kMaxGroupBlocks) {
        blocks = CompressedStates::count_blocks(size);
        compressed_groups_.push_back({key.first, key.second, {}, nullptr});
        elements.emplace_back();
      }
      compressed_groups_.back().entries.push_back(entry);
      elements.back().push_back(size);
      max_group_blocks = std::max(max_group_blocks, blocks);
    }
  }
  chunk_context_ = std::make_unique<ChunkContext>(settings_.state_dtype, max_group_blocks, all_blocks, options);
  for (size_t i = 0; i < compressed_groups_.size(); ++i) {
    compressed_groups_[i].compressed_states = std::make_unique<CompressedStates>(elements[i], *chunk_context_);
  }
  if (settings_.state_dtype == OptimizerStateDtype::kBf16) num_updates_ = at::zeros({}, at::kLong);
}

void AdamW::add_compressed_chunks(OptimizerUpdate& update) const {
  if (compressed_groups_.empty()) return;
  const ChunkBuffers buffers = chunk_context_->make_buffers();
  for (const auto& compressed : compressed_groups_) {
    std::vector<bool> has_gradients;
    for (const size_t entry : compressed.entries) has_gradients.push_back(buckets_.has_gradient(entry));
    for (auto& chunk : compressed.compressed_states->make_chunks(has_gradients, buffers)) {
      OptimizerUpdate::Group group{.component = compressed.component, .has_weight_decay = compressed.has_weight_decay};
      for (const auto& slice : chunk.slices) {
        const size_t entry_index = compressed.entries[slice.tensor];
        const Entry& entry = entries_[entry_index];
        const auto narrow = [&slice](const at::Tensor& tensor) {
          return tensor.view(-1).narrow(0, slice.first, slice.count);
        };
        group.master_weights.push_back(narrow(entry.master));
        group.gradients.push_back(narrow(get_gradient(entry_index)));
        group.first_moments.push_back(chunk.get_first_moment(slice));
        group.second_moments.push_back(chunk.get_second_moment(slice));
        group.steps.push_back(entry.steps);
      }
      group.compressed_states = compressed.compressed_states.get();
      group.chunk = std::make_shared<const Chunk>(std::move(chunk));
      update.groups.push_back(std::move(group));
    }
  }
}

}  // namespace vlmtrain::engine
