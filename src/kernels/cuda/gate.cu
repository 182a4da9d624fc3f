#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 256;

/// A block takes the columns that it can of one row: blockIdx.x is the row.
template <class Activation, class T, int kCount>
__global__ void gate_forward_kernel(const T* __restrict__ x, T* __restrict__ value, int64_t features) {
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
__global__ void gate_backward_kernel(const T* __restrict__ gradient, const T* __restrict__ x, T* __restrict__ of_x,
                                     int64_t features) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (column >= features) return;
  const int64_t row = int64_t{blockIdx.x} * 2 * features;
  const auto of_value = load<kCount>(gradient + int64_t{blockIdx.x} * features + column);
  const auto gate = load<kCount>(x + row + column);
  const auto up = load<kCount>(x + row + features + column);
  Pack<T, kCount> of_gate, of_up;
  for (int i = 0; i < kCount; ++i) {
    const float g = to_float(of_value.values[i]), a = to_float(gate.values[i]);
    of_gate.values[i] = from_float<T>(g * to_float(up.values[i]) * Activation::slope(a));
    of_up.values[i] = from_float<T>(g * Activation::value(a));
  }
  store<kCount>(of_x + row + column, of_gate);
  store<kCount>(of_x + row + features + column, of_up);
}

Size grid_of(int64_t rows, int64_t packs) {
  return {static_cast<unsigned>(rows), blocks_for(packs, kThreads), 1};
}

template <class Activation, class T, int kCount>
int start(const GateForward& call, void* stream) {
  return launch(gate_forward_kernel<Activation, T, kCount>, grid_of(call.rows, call.features / kCount),
                Size{kThreads, 1, 1}, stream, static_cast<const T*>(call.x), static_cast<T*>(call.value),
                call.features);
}

template <class Activation, class T, int kCount>
int start(const GateBackward& call, void* stream) {
  return launch(gate_backward_kernel<Activation, T, kCount>, grid_of(call.rows, call.features / kCount),
                Size{kThreads, 1, 1}, stream, static_cast<const T*>(call.gradient), static_cast<const T*>(call.x),
                static_cast<T*>(call.of_x), call.features);
}

template <class T, int kCount>
bool fits(const GateForward& call) {
  return in_packs<T, kCount>(call.features, static_cast<const T*>(call.x), static_cast<const T*>(call.value));
}

template <class T, int kCount>
bool fits(const GateBackward& call) {
  return in_packs<T, kCount>(call.features, static_cast<const T*>(call.gradient), static_cast<const T*>(call.x),
                             static_cast<const T*>(call.of_x));
}

template <class Activation, class Call>
int start_in_packs(const Call& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kCount = kPackElements<T>;
    if (fits<T, kCount>(call)) return start<Activation, T, kCount>(call, stream);
    // 3420 features, as of Qwen2.5-VL's vision tower.
    if (fits<T, kCount / 2>(call)) return start<Activation, T, kCount / 2>(call, stream);
    return start<Activation, T, 1>(call, stream);
  });
}

template <class Call>
int start_activation(const Call& call, void* stream) {
  return call.activation == GateActivation::kSilu ? start_in_packs<Silu>(call, stream)
                                                  : start_in_packs<GeluTanh>(call, stream);
}

}  // namespace

int gate_forward(const GateForward& call, void* stream) {
  return start_activation(call, stream);
}

int gate_backward(const GateBackward& call, void* stream) {
  return start_activation(call, stream);
}

}  // namespace vlmtrain::kernels
