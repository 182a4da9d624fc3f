#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;

template <class Function, class T, int kCount>
__global__ void forward_kernel(const T* __restrict__ x, T* __restrict__ value, int64_t count) {
  const int64_t place = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (place >= count) return;
  const auto read = load<kCount>(x + place);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i) result.values[i] = from_float<T>(Function::value(to_float(read.values[i])));
  store<kCount>(value + place, result);
}

template <class Function, class T, int kCount>
__global__ void backward_kernel(const T* __restrict__ gradient, const T* __restrict__ x, T* __restrict__ of_x,
                                int64_t count) {
  const int64_t place = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (place >= count) return;
  const auto of_value = load<kCount>(gradient + place);
  const auto read = load<kCount>(x + place);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i) {
    result.values[i] = from_float<T>(to_float(of_value.values[i]) * Function::slope(to_float(read.values[i])));
  }
  store<kCount>(of_x + place, result);
}

template <class Function, class T, int kCount>
int start(const Activate& call, void* stream) {
  const Size grid{blocks_for(call.count / kCount, kThreads), 1, 1}, block{kThreads, 1, 1};
  const auto* const gradient = static_cast<const T*>(call.gradient);
  const auto* const x = static_cast<const T*>(call.x);
  auto* const result = static_cast<T*>(call.result);
  if (gradient == nullptr)
    return launch(forward_kernel<Function, T, kCount>, grid, block, stream, x, result, call.count);
  return launch(backward_kernel<Function, T, kCount>, grid, block, stream, gradient, x, result, call.count);
}

template <class Function, class T>
int start_in_packs(const Activate& call, void* stream) {
  const bool packs = in_packs<T>(call.count, static_cast<const T*>(call.gradient), static_cast<const T*>(call.x),
                                 static_cast<const T*>(call.result));
  return packs ? start<Function, T, kPackElements<T>>(call, stream) : start<Function, T, 1>(call, stream);
}

}  // namespace

int activate(const Activate& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    switch (call.function) {
      case ActivationFunction::kGelu:
        return start_in_packs<Gelu, T>(call, stream);
      case ActivationFunction::kGeluTanh:
        return start_in_packs<GeluTanh, T>(call, stream);
      case ActivationFunction::kQuickGelu:
        return start_in_packs<QuickGelu, T>(call, stream);
      case ActivationFunction::kRelu:
        return start_in_packs<Relu, T>(call, stream);
    }
    return 1;  // cudaErrorInvalidValue
  });
}

}  // namespace vlmtrain::kernels
