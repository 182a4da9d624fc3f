#pragma once

// The language of the kernels: CUDA C++ compiled by nvcc, or, with VLMTRAIN_EMULATED, C++ compiled
// by g++ for the CPU. Kernels use only what both provide.

#ifdef VLMTRAIN_EMULATED
#include "kernels/emulation/device.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace vlmtrain::kernels {

using Dim3 = dim3;

/// Launches a kernel on `stream`, a cudaStream_t. Returns 0 or a cudaError_t. Does not synchronize.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), Dim3 grid, Dim3 block, void* stream, Arguments... arguments) {
  // clang-format off
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  // clang-format on
  return static_cast<int>(cudaGetLastError());
}

/// Four 32-bit words, the widest store.
struct Vector4 {
  uint32_t values[4];
};

/// Stores `values` in as few instructions as possible: one of up to 8 bytes, or some of 16 bytes.
/// For a plain assignment nvcc may emit one store per element (tests/kernel_stores.py checks for
/// it). REQUIRES: `to` is aligned to sizeof(Values).
template <class Values>
__device__ __forceinline__ void store_vectorized(Values* to, const Values& values) {
  constexpr int kBytes = sizeof(Values), kMaxStoreBytes = sizeof(Vector4);
  if constexpr (kBytes < kMaxStoreBytes) {
    using SmallWord = std::conditional_t<kBytes == 2, uint16_t, uint8_t>;
    using Word = std::conditional_t<kBytes == 8, uint64_t, std::conditional_t<kBytes == 4, uint32_t, SmallWord> >;
    *reinterpret_cast<Word*>(to) = __builtin_bit_cast(Word, values);
  } else {
    struct Vector4Array {
      Vector4 values[kBytes / kMaxStoreBytes];
    };
    const auto source = __builtin_bit_cast(Vector4Array, values);
    const size_t address = __cvta_generic_to_global(to);
    for (int i = 0; i < kBytes / kMaxStoreBytes; ++i) {
      const auto& words = source.values[i].values;
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address + i * kMaxStoreBytes), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }
}

/// Returns the pointer. REQUIRES: its address is a multiple of sizeof(T). The emulation reports a
/// violation; a GPU faults.
template <class T>
__device__ __forceinline__ T* assume_aligned(T* pointer) {
  return pointer;
}

}  // namespace vlmtrain::kernels

/// Declares an array in the shared memory of a thread block.
#define VLMTRAIN_SHARED(type, name, count) __shared__ type name[count]

/// Precedes a loop. Unrolls it so that four iterations read before the first computes.
#define VLMTRAIN_UNROLL_4 _Pragma("unroll 4")

#endif
