#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "engine/compressed_states.h"
#include "engine/optimizer_entry.h"

namespace vlmtrain::engine {

namespace {

/// Of one group of tensors. ATen's kernels count bytes in 32 bits: where both moments of a chunk lie further apart in
/// what holds them, each operation on the two is launched twice.
constexpr int64_t kMostGroupBlocks = (int64_t{1} << 30) / kBlockElements;

}  // namespace

void AdamW::make_compressed_groups(const at::TensorOptions& options) {
  std::map<std::pair<nn::Component, bool>, std::vector<size_t>> entries;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].is_compressed()) entries[{entries_[i].component, entries_[i].decays}].push_back(i);
  }
  int64_t most_blocks = 0, all_blocks = 0;
  std::vector<std::vector<int64_t>> elements;
  for (const auto& [key, members] : entries) {
    int64_t blocks = kMostGroupBlocks + 1;  // of the group so far; the first tensor begins one
    for (const size_t entry : members) {
      const int64_t size = entries_[entry].master.numel();
      blocks += CompressedStates::blocks_of(size);
      all_blocks += CompressedStates::blocks_of(size);
      if (blocks > kMostGroupBlocks) {
        blocks = CompressedStates::blocks_of(size);
        compressed_.push_back({key.first, key.second, {}, nullptr});
        elements.emplace_back();
      }
      compressed_.back().entries.push_back(entry);
      elements.back().push_back(size);
      most_blocks = std::max(most_blocks, blocks);
    }
  }
  room_ = std::make_unique<ChunkRoom>(settings_.states, most_blocks, all_blocks, options);
  for (size_t i = 0; i < compressed_.size(); ++i) {
    compressed_[i].states = std::make_unique<CompressedStates>(elements[i], *room_);
  }
  if (settings_.states == OptimizerStates::kBf16) updates_ = at::zeros({}, at::kLong);
}

void AdamW::add_chunks(PreparedUpdate& update) const {
  if (compressed_.empty()) return;
  const ChunkBuffers buffers = room_->make_buffers();
  for (const auto& compressed : compressed_) {
    std::vector<bool> received;
    for (const size_t entry : compressed.entries) received.push_back(sums_.received(entry));
    for (auto& chunk : compressed.states->chunks(received, buffers)) {
      PreparedUpdate::Group group{.component = compressed.component, .decays = compressed.decays};
      for (const auto& piece : chunk.pieces) {
        const size_t number = compressed.entries[piece.tensor];
        const Entry& entry = entries_[number];
        const auto part = [&piece](const at::Tensor& whole) {
          return whole.view(-1).narrow(0, piece.first, piece.count);
        };
        group.masters.push_back(part(entry.master));
        group.gradients.push_back(part(gradient_of(number)));
        group.first_moments.push_back(chunk.first_values(piece));
        group.second_moments.push_back(chunk.second_values(piece));
        group.steps.push_back(entry.steps);
      }
      group.states = compressed.states.get();
      group.chunk = std::make_shared<const Chunk>(std::move(chunk));
      update.groups.push_back(std::move(group));
    }
  }
}

}  // namespace vlmtrain::engine
