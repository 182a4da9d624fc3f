#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;

template <class Function, class T, int kCount>
__global__ void forward_kernel(const T* __restrict__ x, T* __restrict__ value, int64_t count) {
  const int64_t index = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (index >= count) return;
  const auto packed = load<kCount>(x + index);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i) result.values[i] = from_float<T>(Function::value(to_float(packed.values[i])));
  store<kCount>(value + index, result);
}

template <class Function, class T, int kCount>
__global__ void backward_kernel(const T* __restrict__ gradient, const T* __restrict__ x, T* __restrict__ dx,
                                int64_t count) {
  const int64_t index = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (index >= count) return;
  const auto dy = load<kCount>(gradient + index);
  const auto packed = load<kCount>(x + index);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i) {
    result.values[i] = from_float<T>(to_float(dy.values[i]) * Function::derivative(to_float(packed.values[i])));
  }
  store<kCount>(dx + index, result);
}

template <class Function, class T, int kCount>
int launch_kernel(const Activate& args, void* stream) {
  const Size grid{count_blocks(args.count / kCount, kThreads), 1, 1}, block{kThreads, 1, 1};
  const auto* const gradient = static_cast<const T*>(args.gradient);
  const auto* const x = static_cast<const T*>(args.x);
  auto* const result = static_cast<T*>(args.result);
  if (gradient == nullptr)
    return launch(forward_kernel<Function, T, kCount>, grid, block, stream, x, result, args.count);
  return launch(backward_kernel<Function, T, kCount>, grid, block, stream, gradient, x, result, args.count);
}

template <class Function, class T>
int launch_packed(const Activate& args, void* stream) {
  const bool packs = can_load_packs<T>(args.count, static_cast<const T*>(args.gradient), static_cast<const T*>(args.x),
                                       static_cast<const T*>(args.result));
  return packs ? launch_kernel<Function, T, kPackElements<T>>(args, stream)
               : launch_kernel<Function, T, 1>(args, stream);
}

}  // namespace

int activate(const Activate& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    switch (args.function) {
      case ActivationFunction::kGelu:
        return launch_packed<Gelu, T>(args, stream);
      case ActivationFunction::kGeluTanh:
        return launch_packed<GeluTanh, T>(args, stream);
      case ActivationFunction::kQuickGelu:
        return launch_packed<QuickGelu, T>(args, stream);
      case ActivationFunction::kRelu:
        return launch_packed<Relu, T>(args, stream);
    }
    return 1;  // cudaErrorInvalidValue
  });
}

}  // namespace vlmtrain::kernels
