#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreadsPerBlock = 256;  // divides the threads per multiprocessor of every architecture

/// blockIdx.x is the row, and blockIdx.y a range of its columns. Each thread processes one pack.
template <class T, int kPackSize>
__global__ void int8_kernel(const __grid_constant__ Int8DequantizeArgs args) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kPackSize;
  if (column >= args.columns) return;
  const int64_t index = int64_t{blockIdx.x} * args.columns + column;
  const float absmax = args.row_absmax[blockIdx.x];
  const auto packed = load<kPackSize>(args.values + index);
  Pack<T, kPackSize> result;
  for (int i = 0; i < kPackSize; ++i) {
    result.values[i] = from_float<T>(__fmul_rn(__fmul_rn(static_cast<float>(packed.values[i]), absmax), args.step));
  }
  store<kPackSize>(static_cast<T*>(args.result) + index, result);
}

template <class T, int kPackSize>
int launch_kernel(const Int8DequantizeArgs& args, void* stream) {
  const Dim3 grid{static_cast<unsigned>(args.rows), count_blocks(args.columns / kPackSize, kThreadsPerBlock), 1};
  return launch(int8_kernel<T, kPackSize>, grid, Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

}  // namespace

int int8_dequantize(const Int8DequantizeArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPackSize = kMaxPackSize<T>;
    const bool use_packs = can_load_packs<T>(args.columns, static_cast<const T*>(args.result)) &&
                           can_load_packs<int8_t, kPackSize>(args.columns, args.values);
    return use_packs ? launch_kernel<T, kPackSize>(args, stream) : launch_kernel<T, 1>(args, stream);
  });
}

namespace {

constexpr int kBytesPerThread = 4;  // their 8 values fill a pack of 16 bytes if the result has 16 bits
constexpr int kValuesPerThread = 2 * kBytesPerThread;  // two per byte
constexpr int kNumNf4Values = 16;                      // values of 4 bits
static_assert(kNf4SuperBlockSize % (kValuesPerThread * kThreadsPerBlock) == 0);

/// Returns the absmax of a block. Multiplies and adds without contraction to an FMA, because ATen
/// rounds in between.
__device__ __forceinline__ float compute_absmax(const Nf4DequantizeArgs& args, int64_t block) {
  const int64_t super_block = block / kNf4NestedBlockSize;
  int weight = 0;
  while (weight + 1 < args.num_weights && super_block >= args.first_super_block[weight + 1]) ++weight;
  const float decoded_absmax = args.absmax_codes[args.absmax[block] * args.code_stride];
  return __fadd_rn(__fmul_rn(decoded_absmax, args.nested_absmax[super_block]), args.nested_offset[weight]);
}

template <class T>
__global__ void nf4_kernel(const __grid_constant__ Nf4DequantizeArgs args) {
  VLMTRAIN_SHARED(float, table, kNumNf4Values);
  if (threadIdx.x < kNumNf4Values) table[threadIdx.x] = args.values[threadIdx.x];
  __syncthreads();
  const int64_t first = (int64_t{blockIdx.x} * kThreadsPerBlock + threadIdx.x) * kValuesPerThread;
  const float absmax = compute_absmax(args, first / kNf4BlockSize);
  const auto bytes = load<kBytesPerThread>(args.packed + first / 2);
  Pack<T, kValuesPerThread> result;
  for (int i = 0; i < kBytesPerThread; ++i) {
    result.values[2 * i] = from_float<T>(__fmul_rn(table[bytes.values[i] / kNumNf4Values], absmax));
    result.values[2 * i + 1] = from_float<T>(__fmul_rn(table[bytes.values[i] % kNumNf4Values], absmax));
  }
  store<kValuesPerThread>(static_cast<T*>(args.result) + first, result);
}

}  // namespace

int nf4_dequantize(const Nf4DequantizeArgs& args, void* stream) {
  const auto blocks =
      static_cast<unsigned>(args.super_blocks * (kNf4SuperBlockSize / (kValuesPerThread * kThreadsPerBlock)));
  return dispatch_element_type(args.element, [&](auto zero) {
    return launch(nf4_kernel<decltype(zero)>, Dim3{blocks, 1, 1}, Dim3{kThreadsPerBlock, 1, 1}, stream, args);
  });
}

}  // namespace vlmtrain::kernels
