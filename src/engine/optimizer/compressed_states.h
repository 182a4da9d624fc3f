#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/optimizer/moments.h"

namespace vlmtrain::engine {

/// The state shared by the chunks of all groups of tensors.
struct ChunkContext {
  /// `group_blocks`: maximum blocks of a group; `all_blocks`: blocks of all groups.
  ChunkContext(OptimizerStates kind, int64_t group_blocks, int64_t all_blocks, const at::TensorOptions& device);

  /// Returns buffers that serve all chunks of an update in turn.
  ChunkBuffers make_buffers() const { return {states, max_blocks, options}; }

  OptimizerStates states;
  int64_t max_blocks;  ///< maximum blocks of a chunk
  at::TensorOptions options;
  MomentTables tables;
};

/// Elements [first, first + count) of a tensor, located at element `chunk_offset` of its chunk.
struct ChunkSlice {
  size_t tensor;
  int64_t first;
  int64_t count;
  int64_t chunk_offset;
};

/// Blocks that are expanded, updated and compressed together.
struct Chunk {
  int64_t first_block;
  int64_t blocks;
  std::vector<ChunkSlice> slices;
  ChunkBuffers buffers;  ///< of `blocks` blocks; chunks of an update share their memory

  /// Return views of the buffers, [count], that hold a slice between expand() and compress().
  at::Tensor get_first_moment(const ChunkSlice& slice) const;
  at::Tensor get_second_moment(const ChunkSlice& slice) const;
};

/// Both moments of several tensors in a compressed format. Only one chunk at a time exists in fp32.
/// Not thread-safe.
class CompressedStates {
 public:
  /// Creates zero moments for tensors of these sizes.
  CompressedStates(const std::vector<int64_t>& elements, const ChunkContext& context);

  /// Returns the blocks of a tensor.
  static int64_t count_blocks(int64_t elements);

  /// Returns chunks that cover all blocks of the tensors with `is_selected` and no others. No chunk
  /// exceeds `buffers`.
  std::vector<Chunk> chunks(const std::vector<bool>& is_selected, const ChunkBuffers& buffers) const;

  /// Writes the fp32 moments of a chunk into its buffers.
  void expand(const Chunk& chunk);
  /// Compresses the buffers of a chunk; see Moments::compress().
  void compress(const Chunk& chunk, const at::Tensor& skipped);

  /// Returns the stored tensors of a tensor's moments with name prefixes: `first_moment`,
  /// `second_moment`, and with 8 bits `first_moment_absmax` and `second_moment_absmax`.
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
