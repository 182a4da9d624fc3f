#pragma once

// Defines CUDA's language extensions and the device functions that the kernels use, so that kernels
// run on the CPU in tests.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/emulation/fibers.h"

#undef __global__
#undef __device__
#undef __forceinline__
#undef __grid_constant__
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)

#define threadIdx (::vlmtrain::kernels::emulation::thread_index())
#define blockIdx (::vlmtrain::kernels::emulation::block_index())
#define blockDim (::vlmtrain::kernels::emulation::block_size())
#define gridDim (::vlmtrain::kernels::emulation::grid_size())

namespace vlmtrain::kernels {

namespace emulation {

/// An array in shared memory.
template <class T, int kCount>
class SharedArray {
 public:
  SharedArray() { register_shared_memory(values_, sizeof(values_)); }
  T& operator[](int64_t i) { return values_[i]; }

 private:
  T values_[kCount];
};

/// Returns `value` of another lane of the warp.
template <class T>
T shuffle(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle_lane(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace emulation

using Dim3 = emulation::Dim3;

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), Dim3 grid, Dim3 block, void* /*stream*/, Arguments... arguments) {
  emulation::run_blocks(grid, block, [&] { kernel(arguments...); });
  return 0;
}

template <class T>
T* assume_aligned(T* pointer) {
  if (reinterpret_cast<uintptr_t>(pointer) % sizeof(T) != 0) emulation::report_misaligned_access();
  return pointer;
}

template <class Values>
void store_vectorized(Values* to, const Values& values) {
  *to = values;
}

}  // namespace vlmtrain::kernels

/// Shared memory of a block. Blocks of a launch run one after another.
#define VLMTRAIN_SHARED(type, name, count) static ::vlmtrain::kernels::emulation::SharedArray<type, count> name
#define VLMTRAIN_UNROLL_4

inline void __syncthreads() {
  vlmtrain::kernels::emulation::wait_at_barrier();
}

template <class T>
T __shfl_xor_sync(unsigned /*lanes*/, T value, int mask) {
  return vlmtrain::kernels::emulation::shuffle(value, (threadIdx.x % 32) ^ static_cast<unsigned>(mask));
}

inline float rsqrtf(float x) {
  return 1.0F / std::sqrt(x);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
/// Returns the position of the lowest set bit, from 1; 0 if no bit is set.
inline int __ffs(int bits) {
  return std::countr_zero(static_cast<unsigned>(bits)) % 32 + (bits != 0 ? 1 : 0);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
