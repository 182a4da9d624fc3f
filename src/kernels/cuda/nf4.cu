#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;
constexpr int kBytes = 4;            // of a thread
constexpr int kValues = 2 * kBytes;  // in its place
constexpr int kTable = 16;
static_assert(kNf4SuperBlock % (kValues * kThreads) == 0);

/// Not contracted into one operation: ATen rounds between them.
__device__ __forceinline__ float absmax_of(const Nf4Dequantize& call, int64_t block) {
  const int64_t super_block = block / kNf4NestedBlock;
  int weight = 0;
  while (weight + 1 < call.weights && super_block >= call.first_super_block[weight + 1]) ++weight;
  const float relative = call.absmax_codes[call.absmax[block] * call.code_stride];
  return __fadd_rn(__fmul_rn(relative, call.nested_absmax[super_block]), call.nested_offset[weight]);
}

template <class T>
__global__ void nf4_kernel(const __grid_constant__ Nf4Dequantize call) {
  VLMTRAIN_SHARED(float, table, kTable);
  if (threadIdx.x < kTable) table[threadIdx.x] = call.values[threadIdx.x];
  __syncthreads();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kValues;
  const float absmax = absmax_of(call, first / kNf4Block);
  const auto bytes = load<kBytes>(call.packed + first / 2);
  Pack<T, kValues> result;
  for (int i = 0; i < kBytes; ++i) {
    result.values[2 * i] = from_float<T>(__fmul_rn(table[bytes.values[i] / kTable], absmax));
    result.values[2 * i + 1] = from_float<T>(__fmul_rn(table[bytes.values[i] % kTable], absmax));
  }
  store<kValues>(static_cast<T*>(call.result) + first, result);
}

}  // namespace

int nf4_dequantize(const Nf4Dequantize& call, void* stream) {
  const auto blocks = static_cast<unsigned>(call.super_blocks * (kNf4SuperBlock / (kValues * kThreads)));
  return with_element(call.element, [&](auto zero) {
    return launch(nf4_kernel<decltype(zero)>, Size{blocks, 1, 1}, Size{kThreads, 1, 1}, stream, call);
  });
}

}  // namespace vlmtrain::kernels
