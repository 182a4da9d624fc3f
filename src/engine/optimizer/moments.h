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

/// Elements per scale, as in bitsandbytes. Each tensor begins a new block.
inline constexpr int64_t kBlockElements = 256;

/// AdamW's moments: the first is signed, the second unsigned.
inline constexpr int64_t kMoments = 2;

/// fp32 values of both moments of a chunk, and scratch memory for expansion and compression.
struct ChunkBuffers {
  /// Allocates uninitialized buffers.
  ChunkBuffers(OptimizerStates states, int64_t blocks, const at::TensorOptions& options);

  /// Returns dense views of the same memory for fewer blocks.
  ChunkBuffers narrow_blocks(int64_t blocks) const;

  /// Returns the number of blocks.
  int64_t blocks() const { return values.size(1); }

  at::Tensor values;    ///< fp32 [2, blocks, 256]
  at::Tensor integers;  ///< int32 [2, blocks, 256]
  // 8 bits:
  at::Tensor scales;   ///< fp32 [2, blocks, 1]
  at::Tensor factors;  ///< fp32 [2, blocks, 1]
};

/// Compressed moments of many tensors, one after another. Only constructors allocate memory.
class Moments {
 public:
  virtual ~Moments() = default;

  /// Writes the fp32 values of the blocks from `first` on into `buffers`.
  virtual void expand(int64_t first, const ChunkBuffers& buffers) const = 0;

  /// Compresses `buffers` into the blocks from `first` on and overwrites them. If `skipped`, a bool
  /// scalar on the device, is true, the stored values remain bit-exact. REQUIRES: buffers were
  /// filled by expand().
  virtual void compress(int64_t first, const ChunkBuffers& buffers, const at::Tensor& skipped) = 0;

  /// Returns the stored tensors of `blocks` blocks of a moment from `first` on, not copies, with
  /// the suffix of their names in a checkpoint.
  virtual std::vector<std::pair<std::string, at::Tensor>> state(int64_t moment, int64_t first,
                                                                int64_t blocks) const = 0;
};

/// The tables shared by the moments of an optimizer.
struct MomentTables {
  /// Creates the tables of a format on the device of `options`.
  MomentTables(OptimizerStates states, const at::TensorOptions& options);

  // bf16:
  at::Generator random;  ///< random stream of the rounding
  // 8 bits:
  at::Tensor pairs;                 ///< int64 [2, 65536]: per moment, the fp32 values of two codes
  at::Tensor bounds;                ///< fp32 [2, 255], midpoints between values of codes
  at::Tensor codes, padded_bounds;  ///< fp32 [2, 256]: the values, and the midpoints followed by infinity
};

/// Returns zero moments.
std::unique_ptr<Moments> make_moments(OptimizerStates states, int64_t blocks, const MomentTables& tables,
                                      const at::TensorOptions& options);

}  // namespace vlmtrain::engine
