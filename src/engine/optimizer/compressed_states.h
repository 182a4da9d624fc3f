#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/optimizer/chunks.h"
#include "engine/optimizer/state_memory.h"
#include "vlmtrain/engine/settings/training_settings.h"

namespace vlmtrain::engine {

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

/// Returns a generator of random numbers for the device of `options`.
at::Generator make_generator(const at::TensorOptions& options);

/// The tables shared by the moments of an optimizer.
struct MomentTables {
  /// Creates the tables of a format on the device of `options`; none for kFp32.
  MomentTables(OptimizerStateDtype state_dtype, const at::TensorOptions& options);

  // Defined only for bf16 moments:
  at::Generator random;  ///< random numbers of the stochastic rounding
  // Defined only for 8-bit moments; dimension 0 is the moment:
  at::Tensor code_pairs;     ///< int64 [2, 65536]: the fp32 values of two codes
  at::Tensor bounds;         ///< fp32 [2, 255]: midpoints between the values of adjacent codes
  at::Tensor codebooks;      ///< fp32 [2, 256]: the value of each code
  at::Tensor padded_bounds;  ///< fp32 [2, 256]: `bounds`, followed by infinity
};

/// Returns zero moments of `blocks` blocks in `memory`. Throws InternalError for kFp32.
std::unique_ptr<Moments> make_moments(OptimizerStateDtype state_dtype, int64_t blocks, const MomentTables& tables,
                                      StateMemory& memory);

/// Both moments of several tensors in a compressed format. Only one chunk at a time exists in fp32.
/// Not thread-safe.
class CompressedStates {
 public:
  /// Creates zero moments for the tensors of `layout` in `memory`. Throws InternalError for kFp32.
  CompressedStates(const BlockLayout& layout, OptimizerStateDtype state_dtype, const MomentTables& tables,
                   StateMemory& memory);

  /// Writes the fp32 moments of a chunk into its buffers.
  void decompress(const Chunk& chunk);
  /// Compresses the buffers of a chunk; see Moments::compress().
  void compress(const Chunk& chunk, const at::Tensor& skipped);

  /// Returns the stored tensors of a tensor's moments, not copies, with the prefixes of their
  /// names: `first_moment`, `second_moment`, and with 8 bits `first_moment_absmax` and
  /// `second_moment_absmax`. AdamW::state() has their shapes.
  std::vector<std::pair<std::string, at::Tensor>> state(size_t tensor) const;

 private:
  BlockLayout layout_;
  std::unique_ptr<Moments> moments_;
};

}  // namespace vlmtrain::engine
