#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/optimizer/moments.h"

namespace vlmtrain::engine {

/// What the chunks of all groups of tensors have in common.
struct ChunkContext {
  /// For groups of tensors of at most so many blocks; `all_blocks` is of all groups together.
  ChunkContext(OptimizerStates kind, int64_t group_blocks, int64_t all_blocks, const at::TensorOptions& device);

  /// For all chunks of an update, one after another.
  ChunkBuffers make_buffers() const { return {states, max_blocks, options}; }

  OptimizerStates states;
  int64_t max_blocks;  ///< of a chunk
  at::TensorOptions options;
  MomentTables tables;
};

/// A part of a tensor: elements [first, first + count) of it, which lie from element `chunk_offset` of its chunk on.
struct ChunkSlice {
  size_t tensor;
  int64_t first;
  int64_t count;
  int64_t chunk_offset;
};

/// Blocks that are expanded, moved and compressed together.
struct Chunk {
  int64_t first_block;
  int64_t blocks;
  std::vector<ChunkSlice> slices;
  ChunkBuffers buffers;  ///< of so many blocks; chunks of an update share their memory

  /// Views of the buffers, [count], in which a piece lies between expand() and compress().
  at::Tensor get_first_moment(const ChunkSlice& slice) const;
  at::Tensor get_second_moment(const ChunkSlice& slice) const;
};

/// Both moments of several tensors, held in less than fp32. Only a chunk of them at a time exists in fp32.
class CompressedStates {
 public:
  /// Tensors of these sizes; all moments are zeros.
  CompressedStates(const std::vector<int64_t>& elements, const ChunkContext& context);

  static int64_t count_blocks(int64_t elements);

  /// Chunks of all blocks of the tensors that are `is_selected`, and of no others. None is larger than
  /// the buffers, in which they lie.
  std::vector<Chunk> chunks(const std::vector<bool>& is_selected, const ChunkBuffers& buffers) const;

  void expand(const Chunk& chunk);
  void compress(const Chunk& chunk, const at::Tensor& skipped);

  /// What holds a tensor's moments, each with its name before the tensor's: `first_moment`, `second_moment`, and with 8
  /// bits `first_moment_absmax` and `second_moment_absmax`.
  std::vector<std::pair<std::string, at::Tensor>> state(size_t tensor) const;

 private:
  struct TensorBlocks {
    int64_t elements;
    int64_t first_block;
    int64_t end_block() const { return first_block + count_blocks(elements); }
  };

  void add_chunks(std::vector<Chunk>& chunks, size_t first_tensor, size_t end_tensor,
                  const ChunkBuffers& buffers) const;

  std::vector<TensorBlocks> tensor_blocks_;
  std::unique_ptr<Moments> moments_;
};

}  // namespace vlmtrain::engine
