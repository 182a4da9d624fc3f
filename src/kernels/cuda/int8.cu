#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;

/// A block takes the columns that it can of one row: blockIdx.x is the row.
template <class T, int kCount>
__global__ void int8_kernel(const __grid_constant__ Int8Dequantize args) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (column >= args.columns) return;
  const int64_t index = int64_t{blockIdx.x} * args.columns + column;
  const float absmax = args.row_absmax[blockIdx.x];
  const auto packed = load<kCount>(args.values + index);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i) {
    result.values[i] = from_float<T>(__fmul_rn(__fmul_rn(static_cast<float>(packed.values[i]), absmax), args.step));
  }
  store<kCount>(static_cast<T*>(args.result) + index, result);
}

template <class T, int kCount>
int launch_kernel(const Int8Dequantize& args, void* stream) {
  const Size grid{static_cast<unsigned>(args.rows), count_blocks(args.columns / kCount, kThreads), 1};
  return launch(int8_kernel<T, kCount>, grid, Size{kThreads, 1, 1}, stream, args);
}

}  // namespace

int int8_dequantize(const Int8Dequantize& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kCount = kPackElements<T>;
    const bool packs = can_load_packs<T>(args.columns, static_cast<const T*>(args.result)) &&
                       can_load_packs<int8_t, kCount>(args.columns, args.values);
    return packs ? launch_kernel<T, kCount>(args, stream) : launch_kernel<T, 1>(args, stream);
  });
}

}  // namespace vlmtrain::kernels
