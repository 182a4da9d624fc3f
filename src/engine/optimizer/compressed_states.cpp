#include "engine/optimizer/compressed_states.h"

#include <algorithm>

namespace vlmtrain::engine {

namespace {

/// The minimum of ChunkContext::max_blocks: 16.8 million elements with 270 MB of buffers. Buffers
/// exist only during an update, when no activations exist. Smaller chunks need more launches.
constexpr int64_t kMinChunkBlocks = (int64_t{16} << 20) / kBlockElements;
/// The maximum of ChunkContext::max_blocks: 67 million elements with 1.07 GB of buffers. Larger
/// chunks would not save launches, because ATen's kernels index bytes with 32 bits.
constexpr int64_t kMaxChunkBlocks = (int64_t{64} << 20) / kBlockElements;
/// Between these limits, a chunk has 1 / kTargetNumChunks of all blocks. Its buffers then have a
/// quarter of a byte per element of all blocks (16 bytes per element of a chunk).
constexpr int64_t kTargetNumChunks = 64;

at::Tensor narrow_moments(const at::Tensor& moments, int64_t moment, const ChunkSlice& slice) {
  return moments.select(0, moment).view(-1).narrow(0, slice.chunk_offset, slice.count);
}

}  // namespace

ChunkContext::ChunkContext(OptimizerStateDtype dtype, int64_t group_blocks, int64_t all_blocks,
                           const at::TensorOptions& device)
    : state_dtype(dtype),
      max_blocks(std::min(group_blocks, std::clamp(all_blocks / kTargetNumChunks, kMinChunkBlocks, kMaxChunkBlocks))),
      options(device),
      tables(dtype, device) {}

at::Tensor Chunk::get_first_moment(const ChunkSlice& slice) const {
  return narrow_moments(buffers.values, 0, slice);
}

at::Tensor Chunk::get_second_moment(const ChunkSlice& slice) const {
  return narrow_moments(buffers.values, 1, slice);
}

int64_t CompressedStates::count_blocks(int64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}

CompressedStates::CompressedStates(const std::vector<int64_t>& elements, const ChunkContext& context) {
  int64_t blocks = 0;
  for (const int64_t count : elements) {
    tensor_blocks_.push_back({count, blocks});
    blocks = tensor_blocks_.back().end_block();
  }
  moments_ = make_moments(context.state_dtype, blocks, context.tables, context.options);
}

std::vector<Chunk> CompressedStates::make_chunks(const std::vector<bool>& is_selected,
                                                 const ChunkBuffers& buffers) const {
  std::vector<Chunk> chunks;
  for (size_t first = 0; first < is_selected.size(); ++first) {
    if (!is_selected[first]) continue;
    size_t end = first;
    while (end < is_selected.size() && is_selected[end]) ++end;
    add_chunks(chunks, first, end, buffers);
    first = end;
  }
  return chunks;
}

void CompressedStates::add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor,
                                  const ChunkBuffers& buffers) const {
  const int64_t end_block = tensor_blocks_[end_tensor - 1].end_block();
  for (int64_t block = tensor_blocks_[first_tensor].first_block; block < end_block;) {
    const int64_t blocks = std::min(end_block - block, buffers.blocks());
    Chunk chunk{block, blocks, {}, buffers.narrow_blocks(blocks)};
    const int64_t chunk_end = block + chunk.num_blocks;
    for (size_t tensor = first_tensor; tensor < end_tensor; ++tensor) {
      const TensorBlocks& tensor_blocks = tensor_blocks_[tensor];
      if (tensor_blocks.end_block() <= block || tensor_blocks.first_block >= chunk_end) continue;
      const int64_t first = std::max<int64_t>(0, (block - tensor_blocks.first_block) * kBlockElements);
      const int64_t end = std::min(tensor_blocks.elements, (chunk_end - tensor_blocks.first_block) * kBlockElements);
      chunk.slices.push_back(
          {tensor, first, end - first, (tensor_blocks.first_block - block) * kBlockElements + first});
    }
    chunks.push_back(std::move(chunk));
    block = chunk_end;
  }
}

void CompressedStates::decompress(const Chunk& chunk) {
  moments_->decompress(chunk.first_block, chunk.buffers);
}

void CompressedStates::compress(const Chunk& chunk, const at::Tensor& skipped) {
  moments_->compress(chunk.first_block, chunk.buffers, skipped);
}

std::vector<std::pair<std::string, at::Tensor>> CompressedStates::state(size_t tensor) const {
  const TensorBlocks& tensor_blocks = tensor_blocks_[tensor];
  const int64_t blocks = tensor_blocks.end_block() - tensor_blocks.first_block;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [prefix, moment] : {std::pair{"first_moment", 0}, {"second_moment", 1}}) {
    for (auto& [suffix, moment_tensor] : moments_->state(moment, tensor_blocks.first_block, blocks))
      tensors.emplace_back(prefix + suffix, moment_tensor);
  }
  return tensors;
}

}  // namespace vlmtrain::engine
