#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/settings/training_settings.h"

namespace vlmtrain::engine {

/// Elements per block, which share a scale, as in bitsandbytes. Each tensor begins a new block.
inline constexpr int64_t kBlockElements = 256;

/// Number of AdamW's moments. The first is signed, the second unsigned.
inline constexpr int64_t kNumMoments = 2;

/// The fp32 values of both moments of a chunk, and scratch memory for expansion and compression.
struct ChunkBuffers {
  /// Allocates uninitialized buffers.
  ChunkBuffers(OptimizerStateDtype state_dtype, int64_t blocks, const at::TensorOptions& options);

  /// Returns contiguous views of the beginning of the same memory, for fewer blocks.
  ChunkBuffers narrow_blocks(int64_t blocks) const;

  /// Returns the number of blocks.
  int64_t blocks() const { return values.size(1); }

  at::Tensor values;    ///< fp32 [2, blocks, 256]
  at::Tensor integers;  ///< int32 [2, blocks, 256]
  // Defined only for 8-bit moments:
  at::Tensor scales;          ///< fp32 [2, blocks, 1]: maximum absolute value of each block
  at::Tensor inverse_scales;  ///< fp32 [2, blocks, 1]: reciprocals of the scales
};

/// Both moments of many tensors in a compressed format, one tensor after another. Only constructors
/// allocate memory.
class Moments {
 public:
  virtual ~Moments() = default;

  /// Writes the fp32 values of buffers.blocks() blocks, from block `first` on, into `buffers`.
  virtual void decompress(int64_t first, const ChunkBuffers& buffers) const = 0;

  /// Compresses `buffers` into the blocks from block `first` on. Overwrites `buffers`. If
  /// `skipped`, a bool scalar on the device, is true, the stored values remain bit-exact. REQUIRES:
  /// decompress() was called with the same arguments.
  virtual void compress(int64_t first, const ChunkBuffers& buffers, const at::Tensor& skipped) = 0;

  /// Returns the stored tensors of `blocks` blocks of moment 0 or 1, from block `first` on, not
  /// copies, with the suffixes of their names in a checkpoint.
  virtual std::vector<std::pair<std::string, at::Tensor>> state(int64_t moment, int64_t first,
                                                                int64_t blocks) const = 0;
};

/// The tables shared by the moments of an optimizer.
struct MomentTables {
  /// Creates the tables of a format on the device of `options`.
  MomentTables(OptimizerStateDtype state_dtype, const at::TensorOptions& options);

  // Defined only for bf16 moments:
  at::Generator random;  ///< random numbers of the stochastic rounding
  // Defined only for 8-bit moments; dimension 0 is the moment:
  at::Tensor code_pairs;     ///< int64 [2, 65536]: the fp32 values of two codes
  at::Tensor bounds;         ///< fp32 [2, 255]: midpoints between the values of adjacent codes
  at::Tensor codebooks;      ///< fp32 [2, 256]: the value of each code
  at::Tensor padded_bounds;  ///< fp32 [2, 256]: `bounds`, followed by infinity
};

/// Returns zero moments of `blocks` blocks on the device of `options`. Throws InternalError for
/// kFp32.
std::unique_ptr<Moments> make_moments(OptimizerStateDtype state_dtype, int64_t blocks, const MomentTables& tables,
                                      const at::TensorOptions& options);

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
