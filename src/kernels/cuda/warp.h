#pragma once

#include "kernels/cuda/device.h"

namespace vlmtrain::kernels {

constexpr int kLanes = 32;

/// The sum over a warp's lanes, in all of them. All lanes come here.
__device__ __forceinline__ float sum_of_warp(float value) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

}  // namespace vlmtrain::kernels
