#include "engine/compressed_states.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace vlmtrain::engine {

namespace {

/// 16 MiB of fp32: large enough for kernels to take longer than their launches, small beside any model.
constexpr int64_t kMostChunkBlocks = (int64_t{4} << 20) / kBlockElements;

at::Tensor piece_of(const at::Tensor& values, const ChunkPiece& piece) {
  return values.view(-1).narrow(0, piece.place, piece.count);
}

}  // namespace

ChunkRoom::ChunkRoom(OptimizerStates states, int64_t blocks, const at::TensorOptions& options)
    : scratch(states, std::min(blocks, kMostChunkBlocks), options),
      first_values(at::zeros(scratch.integers.sizes(), options.dtype(at::kFloat))),
      second_values(at::zeros(scratch.integers.sizes(), options.dtype(at::kFloat))) {}

int64_t CompressedStates::blocks_of(int64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}

CompressedStates::CompressedStates(const std::vector<int64_t>& elements, OptimizerStates states, ChunkRoom& room,
                                   const at::TensorOptions& options)
    : room_(room) {
  int64_t blocks = 0;
  for (const int64_t count : elements) {
    places_.push_back({count, blocks});
    blocks = places_.back().end_block();
  }
  first_ = make_moments(states, nn::Signs::kBoth, blocks, room.scratch, options);
  second_ = make_moments(states, nn::Signs::kPositive, blocks, room.scratch, options);
}

std::vector<Chunk> CompressedStates::chunks(const std::vector<bool>& wanted) const {
  std::vector<Chunk> chunks;
  for (size_t first = 0; first < wanted.size(); ++first) {
    if (!wanted[first]) continue;
    size_t end = first;
    while (end < wanted.size() && wanted[end]) ++end;
    add_chunks(chunks, first, end);
    first = end;
  }
  return chunks;
}

void CompressedStates::add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor) const {
  const int64_t end_block = places_[end_tensor - 1].end_block();
  for (int64_t block = places_[first_tensor].first_block; block < end_block;) {
    Chunk chunk{block, std::min(end_block - block, room_.first_values.size(0)), {}};
    const int64_t chunk_end = block + chunk.blocks;
    for (size_t tensor = first_tensor; tensor < end_tensor; ++tensor) {
      const Place& place = places_[tensor];
      if (place.end_block() <= block || place.first_block >= chunk_end) continue;
      const int64_t first = std::max<int64_t>(0, (block - place.first_block) * kBlockElements);
      const int64_t end = std::min(place.elements, (chunk_end - place.first_block) * kBlockElements);
      chunk.pieces.push_back({tensor, first, end - first, (place.first_block - block) * kBlockElements + first});
    }
    chunks.push_back(std::move(chunk));
    block = chunk_end;
  }
}

at::Tensor CompressedStates::first_values(const ChunkPiece& piece) const {
  return piece_of(room_.first_values, piece);
}

at::Tensor CompressedStates::second_values(const ChunkPiece& piece) const {
  return piece_of(room_.second_values, piece);
}

void CompressedStates::expand(const Chunk& chunk) {
  first_->expand(chunk.first_block, room_.first_values.narrow(0, 0, chunk.blocks));
  second_->expand(chunk.first_block, room_.second_values.narrow(0, 0, chunk.blocks));
}

void CompressedStates::compress(const Chunk& chunk, const at::Tensor& skipped) {
  first_->compress(chunk.first_block, room_.first_values.narrow(0, 0, chunk.blocks), skipped);
  second_->compress(chunk.first_block, room_.second_values.narrow(0, 0, chunk.blocks), skipped);
}

std::vector<std::pair<std::string, at::Tensor>> CompressedStates::state(size_t tensor) const {
  const Place& place = places_[tensor];
  const int64_t blocks = place.end_block() - place.first_block;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [prefix, moments] : {std::pair{"first_moment", first_.get()}, {"second_moment", second_.get()}}) {
    for (auto& [suffix, held] : moments->state(place.first_block, blocks)) tensors.emplace_back(prefix + suffix, held);
  }
  return tensors;
}

}  // namespace vlmtrain::engine
