#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/optimizer_states.h"

namespace vlmtrain::engine {

/// Elements that share a scale. Tensors begin with a new block.
inline constexpr int64_t kBlockElements = 256;

/// AdamW's moments: the first, which has both signs, and the second, which has none.
inline constexpr int64_t kMoments = 2;

/// Both moments of a chunk of blocks in fp32, and room for what expanding and compressing them takes on the way.
struct ChunkBuffers {
  /// Uninitialised.
  ChunkBuffers(OptimizerStates states, int64_t blocks, const at::TensorOptions& options);

  /// Views of the same memory for fewer blocks, dense as well.
  ChunkBuffers narrow_blocks(int64_t blocks) const;

  int64_t blocks() const { return values.size(1); }

  at::Tensor values;    ///< fp32 [2, blocks, 256]
  at::Tensor integers;  ///< int32 [2, blocks, 256]
  // With 8 bits:
  at::Tensor scales;   ///< fp32 [2, blocks, 1]
  at::Tensor factors;  ///< fp32 [2, blocks, 1]
};

/// AdamW's moments of many tensors, end to end, held in less than fp32. Nothing but the constructors allocates.
class Moments {
 public:
  virtual ~Moments() = default;

  /// Writes the fp32 values of the blocks from `first` on.
  virtual void expand(int64_t first, const ChunkBuffers& buffers) const = 0;

  /// Takes these values over, and overwrites the buffers. Where `skipped`, a bool scalar on the device, is true, they
  /// are those of expand(), and what is held stays the same to the bit.
  virtual void compress(int64_t first, const ChunkBuffers& buffers, const at::Tensor& skipped) = 0;

  /// What holds `blocks` blocks of a moment from `first` on, each with the suffix of its name in a checkpoint. Not
  /// copies.
  virtual std::vector<std::pair<std::string, at::Tensor>> state(int64_t moment, int64_t first,
                                                                int64_t blocks) const = 0;
};

/// What the moments of an optimizer share.
struct MomentTables {
  MomentTables(OptimizerStates states, const at::TensorOptions& options);

  // With bf16:
  at::Generator random;  ///< of the rounding; a stream of its own
  // With 8 bits:
  at::Tensor pairs;                 ///< int64 [2, 65536]: of each moment the two fp32 values of two codes
  at::Tensor bounds;                ///< fp32 [2, 255], between the values of codes
  at::Tensor codes, padded_bounds;  ///< fp32 [2, 256]: the values themselves, and bounds with an infinity behind
};

/// Zeros.
std::unique_ptr<Moments> make_moments(OptimizerStates states, int64_t blocks, const MomentTables& tables,
                                      const at::TensorOptions& options);

}  // namespace vlmtrain::engine
