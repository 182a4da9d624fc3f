#include "engine/compressed_states.h"

#include <algorithm>

namespace vlmtrain::engine {

namespace {

/// 16.8 million elements, 270 MB of buffers. They exist while an update is done only, when no activations are held.
constexpr int64_t kSmallChunkBlocks = (int64_t{16} << 20) / kBlockElements;
/// 67 million, 1.07 GB, for a quarter of the launches. ATen's kernels count bytes in 32 bits.
constexpr int64_t kMostChunkBlocks = (int64_t{64} << 20) / kBlockElements;
/// A chunk is at most this part of all: buffers of a quarter of a byte an element.
constexpr int64_t kFewestChunks = 64;

at::Tensor piece_of(const at::Tensor& moments, int64_t moment, const ChunkPiece& piece) {
  return moments.select(0, moment).view(-1).narrow(0, piece.place, piece.count);
}

}  // namespace

ChunkRoom::ChunkRoom(OptimizerStates kind, int64_t blocks_of_group, int64_t all_blocks, const at::TensorOptions& device)
    : states(kind),
      most_blocks(
          std::min(blocks_of_group, std::clamp(all_blocks / kFewestChunks, kSmallChunkBlocks, kMostChunkBlocks))),
      options(device),
      shared(kind, device) {}

at::Tensor Chunk::first_values(const ChunkPiece& piece) const {
  return piece_of(buffers.values, 0, piece);
}

at::Tensor Chunk::second_values(const ChunkPiece& piece) const {
  return piece_of(buffers.values, 1, piece);
}

int64_t CompressedStates::blocks_of(int64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}

CompressedStates::CompressedStates(const std::vector<int64_t>& elements, const ChunkRoom& room) {
  int64_t blocks = 0;
  for (const int64_t count : elements) {
    places_.push_back({count, blocks});
    blocks = places_.back().end_block();
  }
  moments_ = make_moments(room.states, blocks, room.shared, room.options);
}

std::vector<Chunk> CompressedStates::chunks(const std::vector<bool>& wanted, const ChunkBuffers& buffers) const {
  std::vector<Chunk> chunks;
  for (size_t first = 0; first < wanted.size(); ++first) {
    if (!wanted[first]) continue;
    size_t end = first;
    while (end < wanted.size() && wanted[end]) ++end;
    add_chunks(chunks, first, end, buffers);
    first = end;
  }
  return chunks;
}

void CompressedStates::add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor,
                                  const ChunkBuffers& buffers) const {
  const int64_t end_block = places_[end_tensor - 1].end_block();
  for (int64_t block = places_[first_tensor].first_block; block < end_block;) {
    const int64_t blocks = std::min(end_block - block, buffers.blocks());
    Chunk chunk{block, blocks, {}, buffers.for_blocks(blocks)};
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

void CompressedStates::expand(const Chunk& chunk) {
  moments_->expand(chunk.first_block, chunk.buffers);
}

void CompressedStates::compress(const Chunk& chunk, const at::Tensor& skipped) {
  moments_->compress(chunk.first_block, chunk.buffers, skipped);
}

std::vector<std::pair<std::string, at::Tensor>> CompressedStates::state(size_t tensor) const {
  const Place& place = places_[tensor];
  const int64_t blocks = place.end_block() - place.first_block;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [prefix, moment] : {std::pair{"first_moment", 0}, {"second_moment", 1}}) {
    for (auto& [suffix, held] : moments_->state(moment, place.first_block, blocks))
      tensors.emplace_back(prefix + suffix, held);
  }
  return tensors;
}

}  // namespace vlmtrain::engine
