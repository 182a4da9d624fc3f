#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;

/// A block takes the columns that it can of one row: blockIdx.x is the row.
template <class Activation, class T, int kCount>
__global__ void gated_activation_forward_kernel(const T* __restrict__ x, T* __restrict__ value, int64_t features) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (column >= features) return;
  const T* const row = x + int64_t{blockIdx.x} * 2 * features;
  const auto gate = load<kCount>(row + column);
  const auto up = load<kCount>(row + features + column);
  Pack<T, kCount> result;
  for (int i = 0; i < kCount; ++i)
    result.values[i] = from_float<T>(Activation::value(to_float(gate.values[i])) * to_float(up.values[i]));
  store<kCount>(value + int64_t{blockIdx.x} * features + column, result);
}

template <class Activation, class T, int kCount>
__global__ void gated_activation_backward_kernel(const T* __restrict__ gradient, const T* __restrict__ x,
                                                 T* __restrict__ dx, int64_t features) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (column >= features) return;
  const int64_t row = int64_t{blockIdx.x} * 2 * features;
  const auto dy = load<kCount>(gradient + int64_t{blockIdx.x} * features + column);
  const auto gate = load<kCount>(x + row + column);
  const auto up = load<kCount>(x + row + features + column);
  Pack<T, kCount> d_gate, d_up;
  for (int i = 0; i < kCount; ++i) {
    const float g = to_float(dy.values[i]), a = to_float(gate.values[i]);
    d_gate.values[i] = from_float<T>(g * to_float(up.values[i]) * Activation::derivative(a));
    d_up.values[i] = from_float<T>(g * Activation::value(a));
  }
  store<kCount>(dx + row + column, d_gate);
  store<kCount>(dx + row + features + column, d_up);
}

Size make_grid(int64_t rows, int64_t packs) {
  return {static_cast<unsigned>(rows), count_blocks(packs, kThreads), 1};
}

template <class Activation, class T, int kCount>
int launch_kernel(const GatedActivationForward& args, void* stream) {
  return launch(gated_activation_forward_kernel<Activation, T, kCount>, make_grid(args.rows, args.features / kCount),
                Size{kThreads, 1, 1}, stream, static_cast<const T*>(args.x), static_cast<T*>(args.value),
                args.features);
}

template <class Activation, class T, int kCount>
int launch_kernel(const GatedActivationBackward& args, void* stream) {
  return launch(gated_activation_backward_kernel<Activation, T, kCount>, make_grid(args.rows, args.features / kCount),
                Size{kThreads, 1, 1}, stream, static_cast<const T*>(args.gradient), static_cast<const T*>(args.x),
                static_cast<T*>(args.dx), args.features);
}

template <class T, int kCount>
bool fits(const GatedActivationForward& args) {
  return can_load_packs<T, kCount>(args.features, static_cast<const T*>(args.x), static_cast<const T*>(args.value));
}

template <class T, int kCount>
bool fits(const GatedActivationBackward& args) {
  return can_load_packs<T, kCount>(args.features, static_cast<const T*>(args.gradient), static_cast<const T*>(args.x),
                                   static_cast<const T*>(args.dx));
}

template <class Activation, class Call>
int launch_packed(const Call& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kCount = kPackElements<T>;
    if (fits<T, kCount>(args)) return launch_kernel<Activation, T, kCount>(args, stream);
    // 3420 features, as of Qwen2.5-VL's vision tower.
    if (fits<T, kCount / 2>(args)) return launch_kernel<Activation, T, kCount / 2>(args, stream);
    return launch_kernel<Activation, T, 1>(args, stream);
  });
}

template <class Call>
int dispatch_activation(const Call& args, void* stream) {
  return args.activation == GateActivation::kSilu ? launch_packed<Silu>(args, stream)
                                                  : launch_packed<GeluTanh>(args, stream);
}

}  // namespace

int gated_activation_forward(const GatedActivationForward& args, void* stream) {
  return dispatch_activation(args, stream);
}

int gated_activation_backward(const GatedActivationBackward& args, void* stream) {
  return dispatch_activation(args, stream);
}

}  // namespace vlmtrain::kernels
