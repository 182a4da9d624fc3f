#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/optimizer/moments.h"

namespace vlmtrain::engine {

/// The state shared by the chunks of all groups of tensors.
struct ChunkContext {
  /// `group_blocks` is the maximum number of blocks of a group, `all_blocks` the number of blocks
  /// of all groups.
  ChunkContext(OptimizerStateDtype dtype, int64_t group_blocks, int64_t all_blocks, const at::TensorOptions& device);

  /// Allocates buffers that all chunks of an update use one after another.
  ChunkBuffers make_buffers() const { return {state_dtype, max_blocks, options}; }

  OptimizerStateDtype state_dtype;
  int64_t max_blocks;         ///< of a chunk
  at::TensorOptions options;  ///< device
  MomentTables tables;
};

/// Elements [first, first + count) of a flattened tensor, which begin at element `chunk_offset` of
/// their chunk.
struct ChunkSlice {
  size_t tensor;  ///< index in CompressedStates
  int64_t first;
  int64_t count;
  int64_t chunk_offset;
};

/// A range of blocks that are expanded, updated and compressed together.
struct Chunk {
  int64_t first_block;  ///< index in CompressedStates
  int64_t num_blocks;   ///< at most ChunkContext::max_blocks
  std::vector<ChunkSlice> slices;
  ChunkBuffers buffers;  ///< of `num_blocks` blocks; chunks of an update share their memory

  /// Returns the slice's first moment, a view fp32 [count] of the buffers, valid between
  /// decompress() and compress().
  at::Tensor get_first_moment(const ChunkSlice& slice) const;
  /// Returns the slice's second moment, in the same way.
  at::Tensor get_second_moment(const ChunkSlice& slice) const;
};

/// Both moments of several tensors in a compressed format. Each tensor consists of blocks of
/// kBlockElements elements, the last one padded. Only one chunk at a time exists in fp32. Not
/// thread-safe.
class CompressedStates {
 public:
  /// Creates zero moments for tensors with these numbers of elements.
  CompressedStates(const std::vector<int64_t>& elements, const ChunkContext& context);

  /// Returns the number of blocks of a tensor with `elements` elements.
  static int64_t count_blocks(int64_t elements);

  /// Returns chunks that cover exactly the blocks of the tensors whose `is_selected` is true. Their
  /// buffers are views of `buffers`, and no chunk has more blocks than `buffers`.
  std::vector<Chunk> make_chunks(const std::vector<bool>& is_selected, const ChunkBuffers& buffers) const;

  /// Writes the fp32 moments of a chunk into its buffers.
  void decompress(const Chunk& chunk);
  /// Compresses the buffers of a chunk; see Moments::compress().
  void compress(const Chunk& chunk, const at::Tensor& skipped);

  /// Returns the stored tensors of a tensor's moments, not copies, with the prefixes of their
  /// names: `first_moment`, `second_moment`, and with 8 bits `first_moment_absmax` and
  /// `second_moment_absmax`. AdamW::state() has their shapes.
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
