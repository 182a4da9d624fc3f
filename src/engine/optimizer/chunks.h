#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vlmtrain/engine/settings/training_settings.h"

namespace vlmtrain::engine {

// A rule that is not fused reads fp32 masters and moments. Those that are stored otherwise exist in fp32
// for one chunk of elements at a time.

/// Elements per block, which share a scale, as in bitsandbytes. Each tensor begins a new block.
inline constexpr int64_t kBlockElements = 256;

/// Number of AdamW's moments. The first is signed, the second unsigned.
inline constexpr int64_t kNumMoments = 2;

/// Returns the number of blocks of a tensor with `elements` elements.
int64_t count_blocks(int64_t elements);

/// Returns the maximum number of blocks of a chunk. `group_blocks` is the maximum number of blocks of a
/// group, `all_blocks` the number of blocks of all groups.
int64_t compute_max_chunk_blocks(int64_t group_blocks, int64_t all_blocks);

/// What exists in fp32 for one chunk at a time.
struct ChunkContents {
  OptimizerStateDtype state_dtype = OptimizerStateDtype::kFp32;  ///< of the moments; kFp32: none
  bool has_masters = false;
};

/// The fp32 values of a chunk, and scratch memory for expansion and compression.
struct ChunkBuffers {
  /// Allocates uninitialized buffers.
  ChunkBuffers(const ChunkContents& contents, int64_t blocks, const at::TensorOptions& options);

  /// Returns contiguous views of the beginning of the same memory, for fewer blocks.
  ChunkBuffers narrow_blocks(int64_t blocks) const;

  /// Returns the number of blocks.
  int64_t blocks() const { return integers.size(1); }

  at::Tensor integers;  ///< int32 [2, blocks, 256]; [1, blocks, 256] without moments
  // Defined only for compressed moments:
  at::Tensor values;  ///< fp32 [2, blocks, 256]: both moments
  // Defined only for 8-bit moments:
  at::Tensor scales;          ///< fp32 [2, blocks, 1]: maximum absolute value of each block
  at::Tensor inverse_scales;  ///< fp32 [2, blocks, 1]: reciprocals of the scales
  // Defined only with masters:
  at::Tensor masters;  ///< fp32 [1, blocks, 256]
};

/// Elements [first, first + count) of a flattened tensor, which begin at element `chunk_offset` of
/// their chunk.
struct ChunkSlice {
  size_t tensor;  ///< index in BlockLayout
  int64_t first;
  int64_t count;
  int64_t chunk_offset;
};

/// A range of blocks that are expanded, updated and compressed together.
struct Chunk {
  int64_t first_block;  ///< index in BlockLayout
  int64_t num_blocks;
  std::vector<ChunkSlice> slices;
  ChunkBuffers buffers;  ///< of `num_blocks` blocks; chunks of an update share their memory

  // Views [count] of the buffers for a slice.
  at::Tensor get_first_moment(const ChunkSlice& slice) const;   ///< fp32
  at::Tensor get_second_moment(const ChunkSlice& slice) const;  ///< fp32
  at::Tensor get_master(const ChunkSlice& slice) const;         ///< fp32
  at::Tensor get_scratch(const ChunkSlice& slice) const;        ///< int32
};

/// The blocks of several tensors, one tensor after another. The last block of each is padded.
class BlockLayout {
 public:
  /// Lays out tensors with these numbers of elements.
  explicit BlockLayout(const std::vector<int64_t>& elements);

  /// Returns the number of blocks of all tensors.
  int64_t num_blocks() const { return tensors_.empty() ? 0 : tensors_.back().end_block(); }
  /// Returns the first block of a tensor.
  int64_t first_block(size_t tensor) const { return tensors_[tensor].first_block; }
  /// Returns the number of blocks of a tensor.
  int64_t num_blocks(size_t tensor) const { return tensors_[tensor].end_block() - tensors_[tensor].first_block; }

  /// Returns chunks that cover exactly the blocks of the tensors whose `is_selected` is true. Their
  /// buffers are views of `buffers`, and no chunk has more blocks than `buffers`.
  std::vector<Chunk> make_chunks(const std::vector<bool>& is_selected, const ChunkBuffers& buffers) const;

 private:
  struct TensorBlocks {
    int64_t elements;
    int64_t first_block;
    int64_t end_block() const { return first_block + count_blocks(elements); }
  };

  void add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor,
                  const ChunkBuffers& buffers) const;

  std::vector<TensorBlocks> tensors_;
};

}  // namespace vlmtrain::engine
