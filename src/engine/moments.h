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
#include "vlmtrain/nn/codebook.h"

namespace vlmtrain::engine {

/// Elements that share a scale. Tensors begin with a new block.
inline constexpr int64_t kBlockElements = 256;

/// Room for what expanding and compressing a chunk of blocks takes on the way.
struct MomentScratch {
  MomentScratch(OptimizerStates states, int64_t blocks, const at::TensorOptions& options);

  at::Tensor integers;  ///< int32 [blocks, 256]
  // With 8 bits:
  at::Tensor bytes;    ///< uint8 [blocks, 256]
  at::Tensor scales;   ///< fp32 [blocks]
  at::Tensor factors;  ///< fp32 [blocks]
  // With bf16:
  at::Generator random;  ///< of the rounding; a stream of its own
};

/// One of AdamW's moments of many tensors, end to end, held in less than fp32. Nothing but the constructors allocates.
class Moments {
 public:
  virtual ~Moments() = default;

  /// Writes the fp32 values of the blocks from `first` on to `values` [blocks, 256].
  virtual void expand(int64_t first, const at::Tensor& values) const = 0;

  /// Takes these values over, and overwrites `values`. Where `skipped`, a bool scalar on the device, is true, they are
  /// those of expand(), and what is held stays the same to the bit.
  virtual void compress(int64_t first, const at::Tensor& values, const at::Tensor& skipped) = 0;

  /// What holds `blocks` blocks from `first` on, each with the suffix of its name in a checkpoint. Not copies.
  virtual std::vector<std::pair<std::string, at::Tensor>> state(int64_t first, int64_t blocks) const = 0;
};

/// Zeros. `scratch` must outlive them.
std::unique_ptr<Moments> make_moments(OptimizerStates states, nn::Signs signs, int64_t blocks, MomentScratch& scratch,
                                      const at::TensorOptions& options);

}  // namespace vlmtrain::engine
