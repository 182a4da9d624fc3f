#pragma once

#include "kernels/cuda/elements.h"

namespace vlmtrain::kernels {

constexpr int kLanes = 32;

/// Blocks of one size, in whole warps and of at most so many threads, so that few threads have nothing to do.
struct EvenBlocks {
  unsigned blocks, threads;

  EvenBlocks(int64_t total_threads, int64_t max_threads)
      : blocks(count_blocks(total_threads, max_threads)),
        threads(count_blocks(total_threads, blocks * int64_t{kLanes}) * kLanes) {}
};

/// The sum over each `lanes` neighbouring lanes of a warp, a power of two, in all of them. All lanes come here.
__device__ __forceinline__ float sum_lanes(float value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

/// The sum over those lanes of a warp that lie `lanes` apart, a power of two, in all of them. All lanes come here.
__device__ __forceinline__ float sum_across_groups(float value, int lanes) {
  for (int mask = lanes; mask < kLanes; mask *= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

/// The sum over a warp's lanes, in all of them. All lanes come here.
__device__ __forceinline__ float warp_sum(float value) {
  return sum_lanes(value, kLanes);
}

}  // namespace vlmtrain::kernels
