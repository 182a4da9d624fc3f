#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;

/// A block takes the columns that it can of one row: blockIdx.x is the row.
template <class T, int kCount>
__global__ void int8_kernel(const __grid_constant__ Int8Dequantize call) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (column >= call.columns) return;
  const int64_t place = int64_t{blockIdx.x} * call.columns + column;
  const float absmax = call.row_absmax[blockIdx.x];
  const auto read = load<kCount>(call.values + place);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i) {
    result.values[i] = from_float<T>(__fmul_rn(__fmul_rn(static_cast<float>(read.values[i]), absmax), call.step));
  }
  store<kCount>(static_cast<T*>(call.result) + place, result);
}

template <class T, int kCount>
int start(const Int8Dequantize& call, void* stream) {
  const Size grid{static_cast<unsigned>(call.rows), blocks_for(call.columns / kCount, kThreads), 1};
  return launch(int8_kernel<T, kCount>, grid, Size{kThreads, 1, 1}, stream, call);
}

}  // namespace

int int8_dequantize(const Int8Dequantize& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kCount = kPackElements<T>;
    const bool packs = in_packs<T>(call.columns, static_cast<const T*>(call.result)) &&
                       in_packs<int8_t, kCount>(call.columns, call.values);
    return packs ? start<T, kCount>(call, stream) : start<T, 1>(call, stream);
  });
}

}  // namespace vlmtrain::kernels
