#pragma once

#include "kernels/cuda/elements.h"

namespace vlmtrain::kernels {

constexpr int kLanes = 32;

/// Blocks of equal size, in whole warps and of at most `max_threads` threads, so that few threads
/// are idle.
struct EvenBlocks {
  unsigned blocks, threads;

  EvenBlocks(int64_t total_threads, int64_t max_threads)
      : blocks(count_blocks(total_threads, max_threads)),
        threads(count_blocks(total_threads, blocks * int64_t{kLanes}) * kLanes) {}
};

/// Returns the sum over each `lanes` neighboring lanes, a power of two, to all of them. REQUIRES:
/// all lanes of the warp call it.
__device__ __forceinline__ float sum_lanes(float value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

/// Returns the sum over the lanes that are `lanes` apart, a power of two, to all of them. REQUIRES:
/// all lanes of the warp call it.
__device__ __forceinline__ float sum_across_groups(float value, int lanes) {
  for (int mask = lanes; mask < kLanes; mask *= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

/// Returns the sum over the warp's lanes to all of them. REQUIRES: all lanes call it.
__device__ __forceinline__ float warp_sum(float value) {
  return sum_lanes(value, kLanes);
}

}  // namespace vlmtrain::kernels
