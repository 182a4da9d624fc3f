#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreadsPerBlock = 256;  // divides the threads per multiprocessor of every architecture

/// Sets the elements of a row beyond the columns of a weight to zero. Called by the thread that
/// writes the last of these columns. kPackSize divides both numbers of columns.
template <int kPackSize, class T, class Args>
__device__ __forceinline__ void zero_padding(T* row, const Args& args) {
  for (int64_t column = args.columns; column < args.result_columns; column += kPackSize)
    store<kPackSize>(row + column, Pack<T, kPackSize>{});
}

/// Returns whether rows of the result can be written in packs of kPackSize elements.
template <class T, int kPackSize, class Args>
bool can_store_packs(const Args& args) {
  return can_load_packs<T, kPackSize>(args.columns, static_cast<const T*>(args.result)) &&
         args.result_columns % kPackSize == 0 && args.result_stride % kPackSize == 0;
}

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
  T* const row = static_cast<T*>(args.result) + int64_t{blockIdx.x} * args.result_stride;
  store<kPackSize>(row + column, result);
  if (column + kPackSize == args.columns) zero_padding<kPackSize>(row, args);
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
    const bool use_packs =
        can_store_packs<T, kPackSize>(args) && can_load_packs<int8_t, kPackSize>(args.columns, args.values);
    return use_packs ? launch_kernel<T, kPackSize>(args, stream) : launch_kernel<T, 1>(args, stream);
  });
}

namespace {

constexpr int kBytesPerThread = 4;  // their 8 values fill a pack of 16 bytes if the result has 16 bits
constexpr int kValuesPerThread = 2 * kBytesPerThread;  // two per byte
constexpr int kNumNf4Values = 16;                      // values of 4 bits
static_assert(kNf4SuperBlockSize % (kValuesPerThread * kThreadsPerBlock) == 0);

/// Returns the index of the weight that a superblock belongs to.
__device__ __forceinline__ int find_weight(const Nf4DequantizeArgs& args, int64_t super_block) {
  int weight = 0;
  while (weight + 1 < args.num_weights && super_block >= args.first_super_block[weight + 1]) ++weight;
  return weight;
}

/// Returns the absmax of a block. Multiplies and adds without contraction to an FMA, because ATen
/// rounds in between.
__device__ __forceinline__ float compute_absmax(const Nf4DequantizeArgs& args, int64_t block, int64_t super_block,
                                                int weight) {
  const float decoded_absmax = args.absmax_codes[args.absmax[block] * args.code_stride];
  return __fadd_rn(__fmul_rn(decoded_absmax, args.nested_absmax[super_block]), args.nested_offset[weight]);
}

/// Each thread writes kValuesPerThread neighboring values of a weight, in packs that do not cross a
/// row: kPackSize divides the columns.
template <class T, int kPackSize>
__global__ void nf4_kernel(const __grid_constant__ Nf4DequantizeArgs args) {
  VLMTRAIN_SHARED(float, table, kNumNf4Values);
  if (threadIdx.x < kNumNf4Values) table[threadIdx.x] = args.values[threadIdx.x];
  __syncthreads();
  const int64_t first = (int64_t{blockIdx.x} * kThreadsPerBlock + threadIdx.x) * kValuesPerThread;
  const int64_t super_block = first / kNf4SuperBlockSize;
  const int weight = find_weight(args, super_block);
  // Both fit 32 bits, in which division is several times as fast.
  const auto index = static_cast<uint32_t>(first - args.first_super_block[weight] * kNf4SuperBlockSize);
  const auto elements = static_cast<uint32_t>(args.elements[weight]), columns = static_cast<uint32_t>(args.columns);
  if (index >= elements) return;  // the last superblock of a weight may not be full
  const float absmax = compute_absmax(args, first / kNf4BlockSize, super_block, weight);
  const auto bytes = load<kBytesPerThread>(args.packed + first / 2);
  T values[kValuesPerThread];
  for (int i = 0; i < kBytesPerThread; ++i) {
    values[2 * i] = from_float<T>(__fmul_rn(table[bytes.values[i] / kNumNf4Values], absmax));
    values[2 * i + 1] = from_float<T>(__fmul_rn(table[bytes.values[i] % kNumNf4Values], absmax));
  }
  T* const result = static_cast<T*>(args.result) + args.first_row[weight] * args.result_stride;
  for (int offset = 0; offset < kValuesPerThread; offset += kPackSize) {
    const uint32_t pack_index = index + static_cast<uint32_t>(offset);
    if (pack_index >= elements) return;
    Pack<T, kPackSize> pack;
    for (int i = 0; i < kPackSize; ++i) pack.values[i] = values[offset + i];
    const uint32_t row_index = pack_index / columns, column = pack_index - row_index * columns;
    T* const row = result + int64_t{row_index} * args.result_stride;
    store<kPackSize>(row + column, pack);
    if (column + kPackSize == columns) zero_padding<kPackSize>(row, args);
  }
}

}  // namespace

int nf4_dequantize(const Nf4DequantizeArgs& args, void* stream) {
  const Dim3 grid{
      static_cast<unsigned>(args.super_blocks * (kNf4SuperBlockSize / (kValuesPerThread * kThreadsPerBlock))), 1, 1};
  const Dim3 block{kThreadsPerBlock, 1, 1};
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPackSize = kMaxPackSize<T>;
    if (can_store_packs<T, kPackSize>(args)) return launch(nf4_kernel<T, kPackSize>, grid, block, stream, args);
    if (can_store_packs<T, kPackSize / 2>(args)) return launch(nf4_kernel<T, kPackSize / 2>, grid, block, stream, args);
    return launch(nf4_kernel<T, 1>, grid, block, stream, args);
  });
}

}  // namespace vlmtrain::kernels
