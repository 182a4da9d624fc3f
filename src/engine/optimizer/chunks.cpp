#include "engine/optimizer/chunks.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace vlmtrain::engine {

namespace {

/// The minimum of compute_max_chunk_blocks(): 16.8 million elements with 270 MB of buffers for moments.
/// Buffers exist only during an update, when no activations exist. Smaller chunks need more launches.
constexpr int64_t kMinChunkBlocks = (int64_t{16} << 20) / kBlockElements;
/// The maximum of compute_max_chunk_blocks(): 67 million elements with 1.07 GB of buffers for moments.
/// Larger chunks would not save launches, because ATen's kernels index bytes with 32 bits.
constexpr int64_t kMaxChunkBlocks = (int64_t{64} << 20) / kBlockElements;
/// Between these limits, a chunk has 1 / kTargetNumChunks of all blocks. Its buffers for moments then
/// have a quarter of a byte per element of all blocks (16 bytes per element of a chunk).
constexpr int64_t kTargetNumChunks = 64;

/// Returns matrix `index` of a buffer [matrices, blocks, 256], flattened and narrowed to the slice.
at::Tensor narrow_to_slice(const at::Tensor& buffer, int64_t index, const ChunkSlice& slice) {
  return buffer.select(0, index).view(-1).narrow(0, slice.chunk_offset, slice.count);
}

/// Returns the beginning of a contiguous tensor [matrices, all blocks, width] as [matrices, blocks,
/// width].
at::Tensor narrow_first_blocks(const at::Tensor& buffer, int64_t blocks) {
  if (!buffer.defined()) return {};
  const int64_t matrices = buffer.size(0), width = buffer.size(2);
  return buffer.view(-1).narrow(0, 0, matrices * blocks * width).view({matrices, blocks, width});
}

}  // namespace

int64_t count_blocks(int64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}

int64_t compute_max_chunk_blocks(int64_t group_blocks, int64_t all_blocks) {
  return std::min(group_blocks, std::clamp(all_blocks / kTargetNumChunks, kMinChunkBlocks, kMaxChunkBlocks));
}

ChunkBuffers::ChunkBuffers(const ChunkContents& contents, int64_t blocks, const at::TensorOptions& options) {
  const bool has_moments = contents.state_dtype != OptimizerStateDtype::kFp32;
  const auto fp32 = options.dtype(at::kFloat);
  if (has_moments) values = at::empty({kNumMoments, blocks, kBlockElements}, fp32);
  integers = at::empty({has_moments ? kNumMoments : 1, blocks, kBlockElements}, options.dtype(at::kInt));
  if (contents.state_dtype == OptimizerStateDtype::k8Bit) {
    scales = at::empty({kNumMoments, blocks, 1}, fp32);
    inverse_scales = at::empty({kNumMoments, blocks, 1}, fp32);
  }
  if (contents.has_masters) masters = at::empty({1, blocks, kBlockElements}, fp32);
}

ChunkBuffers ChunkBuffers::narrow_blocks(int64_t blocks) const {
  ChunkBuffers result = *this;
  for (at::Tensor* tensor :
       {&result.integers, &result.values, &result.scales, &result.inverse_scales, &result.masters}) {
    *tensor = narrow_first_blocks(*tensor, blocks);
  }
  return result;
}

at::Tensor Chunk::get_first_moment(const ChunkSlice& slice) const {
  return narrow_to_slice(buffers.values, 0, slice);
}

at::Tensor Chunk::get_second_moment(const ChunkSlice& slice) const {
  return narrow_to_slice(buffers.values, 1, slice);
}

at::Tensor Chunk::get_master(const ChunkSlice& slice) const {
  return narrow_to_slice(buffers.masters, 0, slice);
}

at::Tensor Chunk::get_scratch(const ChunkSlice& slice) const {
  return narrow_to_slice(buffers.integers, 0, slice);
}

BlockLayout::BlockLayout(const std::vector<int64_t>& elements) {
  int64_t blocks = 0;
  for (const int64_t count : elements) {
    tensors_.push_back({count, blocks});
    blocks = tensors_.back().end_block();
  }
}

std::vector<Chunk> BlockLayout::make_chunks(const std::vector<bool>& is_selected, const ChunkBuffers& buffers) const {
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

void BlockLayout::add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor,
                             const ChunkBuffers& buffers) const {
  const int64_t end_block = tensors_[end_tensor - 1].end_block();
  for (int64_t block = tensors_[first_tensor].first_block; block < end_block;) {
    const int64_t blocks = std::min(end_block - block, buffers.blocks());
    Chunk chunk{block, blocks, {}, buffers.narrow_blocks(blocks)};
    const int64_t chunk_end = block + chunk.num_blocks;
    for (size_t tensor = first_tensor; tensor < end_tensor; ++tensor) {
      const TensorBlocks& tensor_blocks = tensors_[tensor];
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

}  // namespace vlmtrain::engine
