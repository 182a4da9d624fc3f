#pragma once

// What kernels are written in: CUDA C++, compiled by nvcc; or, with VLMTRAIN_EMULATED, by g++ for the CPU.

#ifdef VLMTRAIN_EMULATED
#include "kernels/emulation/device.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace vlmtrain::kernels {

using Size = dim3;

/// Starts a kernel: 0, or a cudaError_t.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), Size grid, Size block, void* stream, Arguments... arguments) {
  // clang-format off
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  // clang-format on
  return static_cast<int>(cudaGetLastError());
}

/// The place itself, which is a multiple of the size of T: emulation sees where it is not, and a card faults.
template <class T>
__device__ __forceinline__ T* aligned(T* place) {
  return place;
}

}  // namespace vlmtrain::kernels

#define VLMTRAIN_SHARED(type, name, count) __shared__ type name[count]
/// Ahead of a loop: so many of its iterations read before the first of them computes.
#define VLMTRAIN_TOGETHER_BY_FOUR _Pragma("unroll 4")

#endif
