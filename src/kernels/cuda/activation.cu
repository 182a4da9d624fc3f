#include "kernels/cuda/device.h"
#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

// Elementwise functions and their derivatives.

__device__ __forceinline__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

/// SiLU, x σ(x), with derivative σ (1 + x (1 − σ)). 1 − σ(x) is computed as σ(−x), which loses no
/// digits where σ is almost 1.
struct Silu {
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(x); }
  static __device__ __forceinline__ float derivative(float x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }
};

/// The tanh approximation of GELU, x / 2 · (1 + tanh u) with u = √(2/π) (x + 0.044715 x³)
/// (Hendrycks and Gimpel 2016, arXiv 1606.08415), computed as x σ(2u).
struct GeluTanh {
  static constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308F;  // 2 √(2/π)
  static constexpr float kCubicCoefficient = 0.044715F;
  static __device__ __forceinline__ float compute_sigmoid_argument(float x) {
    return kTwoSqrtTwoOverPi * (x + kCubicCoefficient * x * x * x);
  }
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(compute_sigmoid_argument(x)); }
  static __device__ __forceinline__ float derivative(float x) {
    const float s = sigmoid(compute_sigmoid_argument(x)), complement = sigmoid(-compute_sigmoid_argument(x));
    return s + x * s * complement * kTwoSqrtTwoOverPi * (1 + 3 * kCubicCoefficient * x * x);
  }
};

/// GELU, x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415), with derivative Φ(x) + x φ(x).
struct Gelu {
  static constexpr float kSqrtHalf = 0.7071067811865476F;
  static constexpr float kDensityAtZero = 0.3989422804014327F;  // 1 / √(2π)
  /// Φ, from erfc, which loses no digits for negative x.
  static __device__ __forceinline__ float normal_cdf(float x) { return 0.5F * erfcf(-x * kSqrtHalf); }
  static __device__ __forceinline__ float value(float x) { return x * normal_cdf(x); }
  static __device__ __forceinline__ float derivative(float x) {
    return normal_cdf(x) + x * kDensityAtZero * expf(-0.5F * x * x);
  }
};

/// QuickGELU, x σ(1.702 x), as in OpenAI's CLIP.
struct QuickGelu {
  static constexpr float kSigmoidScale = 1.702F;
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(kSigmoidScale * x); }
  static __device__ __forceinline__ float derivative(float x) {
    return sigmoid(kSigmoidScale * x) * (1 + kSigmoidScale * x * sigmoid(-kSigmoidScale * x));
  }
};

struct Relu {
  static __device__ __forceinline__ float value(float x) { return x > 0 ? x : 0; }
  static __device__ __forceinline__ float derivative(float x) { return x > 0 ? 1.0F : 0.0F; }
};

constexpr unsigned kThreadsPerBlock = 256;  // divides the threads per multiprocessor of every architecture

/// The first element of a thread's pack. blockIdx.x is the row, and blockIdx.y a range of its columns; a
/// single row may have more ranges than blockIdx.y allows, and blockIdx.x is the range.
struct PackPosition {
  int64_t row, column;

  __device__ __forceinline__ PackPosition(const ActivationArgs& args, int pack_size)
      : row(args.rows == 1 ? 0 : int64_t{blockIdx.x}),
        column((int64_t{args.rows == 1 ? blockIdx.x : blockIdx.y} * blockDim.x + threadIdx.x) * pack_size) {}
};

// Each thread processes one pack of kPackSize elements.

template <class Function, class T, int kPackSize>
__global__ void forward_kernel(const __grid_constant__ ActivationArgs args) {
  const PackPosition position(args, kPackSize);
  if (position.column >= args.features) return;
  const auto packed = load<kPackSize>(static_cast<const T*>(args.x) + position.row * args.x_stride + position.column);
  Pack<T, kPackSize> result;
  for (int i = 0; i < kPackSize; ++i) result.values[i] = from_float<T>(Function::value(to_float(packed.values[i])));
  store<kPackSize>(static_cast<T*>(args.result) + position.row * args.result_stride + position.column, result);
}

template <class Function, class T, int kPackSize>
__global__ void backward_kernel(const __grid_constant__ ActivationArgs args) {
  const PackPosition position(args, kPackSize);
  if (position.column >= args.features) return;
  const auto dy =
      load<kPackSize>(static_cast<const T*>(args.gradient) + position.row * args.gradient_stride + position.column);
  const auto packed = load<kPackSize>(static_cast<const T*>(args.x) + position.row * args.x_stride + position.column);
  Pack<T, kPackSize> result;
  for (int i = 0; i < kPackSize; ++i) {
    result.values[i] = from_float<T>(to_float(dy.values[i]) * Function::derivative(to_float(packed.values[i])));
  }
  store<kPackSize>(static_cast<T*>(args.result) + position.row * args.result_stride + position.column, result);
}

template <class Function, class T, int kPackSize>
int launch_kernel(const ActivationArgs& args, void* stream) {
  const unsigned ranges = count_blocks(args.features / kPackSize, kThreadsPerBlock);
  const Dim3 grid = args.rows == 1 ? Dim3{ranges, 1, 1} : Dim3{static_cast<unsigned>(args.rows), ranges, 1};
  const auto kernel =
      args.gradient == nullptr ? forward_kernel<Function, T, kPackSize> : backward_kernel<Function, T, kPackSize>;
  return launch(kernel, grid, Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

template <class Function, class T>
int launch_activation(const ActivationArgs& args, void* stream) {
  constexpr int kPackSize = kMaxPackSize<T>;
  const bool use_packs = can_load_packs<T>(args.features, args.gradient, args.x, args.result) &&
                         have_pack_strides<kPackSize>(args.gradient_stride, args.x_stride, args.result_stride);
  return use_packs ? launch_kernel<Function, T, kPackSize>(args, stream) : launch_kernel<Function, T, 1>(args, stream);
}

}  // namespace

int activate(const ActivationArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    switch (args.function) {
      case ActivationFunction::kGelu:
        return launch_activation<Gelu, T>(args, stream);
      case ActivationFunction::kGeluTanh:
        return launch_activation<GeluTanh, T>(args, stream);
      case ActivationFunction::kQuickGelu:
        return launch_activation<QuickGelu, T>(args, stream);
      case ActivationFunction::kRelu:
        return launch_activation<Relu, T>(args, stream);
    }
    return 1;  // cudaErrorInvalidValue
  });
}

namespace {

/// blockIdx.x is the row, and blockIdx.y a range of its columns. Each thread processes one pack of
/// each half of the row.
template <class Activation, class T, int kPackSize>
__global__ void gated_activation_forward_kernel(const __grid_constant__ GatedActivationForwardArgs args) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kPackSize;
  if (column >= args.features) return;
  const int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride + column;
  const auto gate = load<kPackSize>(x);
  const auto up = load<kPackSize>(x + args.features);
  Pack<T, kPackSize> result;
  for (int i = 0; i < kPackSize; ++i)
    result.values[i] = from_float<T>(Activation::value(to_float(gate.values[i])) * to_float(up.values[i]));
  store<kPackSize>(static_cast<T*>(args.value) + row * args.value_stride + column, result);
}

template <class Activation, class T, int kPackSize>
__global__ void gated_activation_backward_kernel(const __grid_constant__ GatedActivationBackwardArgs args) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kPackSize;
  if (column >= args.features) return;
  const int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride + column;
  const auto dy = load<kPackSize>(static_cast<const T*>(args.gradient) + row * args.gradient_stride + column);
  const auto gate = load<kPackSize>(x);
  const auto up = load<kPackSize>(x + args.features);
  Pack<T, kPackSize> d_gate, d_up;
  for (int i = 0; i < kPackSize; ++i) {
    const float g = to_float(dy.values[i]), a = to_float(gate.values[i]);
    d_gate.values[i] = from_float<T>(g * to_float(up.values[i]) * Activation::derivative(a));
    d_up.values[i] = from_float<T>(g * Activation::value(a));
  }
  T* const dx = static_cast<T*>(args.dx) + row * args.dx_stride + column;
  store<kPackSize>(dx, d_gate);
  store<kPackSize>(dx + args.features, d_up);
}

Dim3 make_grid(int64_t rows, int64_t packs) {
  return {static_cast<unsigned>(rows), count_blocks(packs, kThreadsPerBlock), 1};
}

template <class Activation, class T, int kPackSize>
int launch_kernel(const GatedActivationForwardArgs& args, void* stream) {
  return launch(gated_activation_forward_kernel<Activation, T, kPackSize>,
                make_grid(args.rows, args.features / kPackSize), Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

template <class Activation, class T, int kPackSize>
int launch_kernel(const GatedActivationBackwardArgs& args, void* stream) {
  return launch(gated_activation_backward_kernel<Activation, T, kPackSize>,
                make_grid(args.rows, args.features / kPackSize), Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

template <class T, int kPackSize>
bool can_use_packs(const GatedActivationForwardArgs& args) {
  return can_load_packs<T, kPackSize>(args.features, args.x, args.value) &&
         have_pack_strides<kPackSize>(args.x_stride, args.value_stride);
}

template <class T, int kPackSize>
bool can_use_packs(const GatedActivationBackwardArgs& args) {
  return can_load_packs<T, kPackSize>(args.features, args.gradient, args.x, args.dx) &&
         have_pack_strides<kPackSize>(args.gradient_stride, args.x_stride, args.dx_stride);
}

template <class Activation, class Args>
int launch_gated_activation(const Args& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPackSize = kMaxPackSize<T>;
    if (can_use_packs<T, kPackSize>(args)) return launch_kernel<Activation, T, kPackSize>(args, stream);
    // Rows of 3420 features, as in Qwen2.5-VL's vision tower, are aligned to half a pack only.
    if (can_use_packs<T, kPackSize / 2>(args)) return launch_kernel<Activation, T, kPackSize / 2>(args, stream);
    return launch_kernel<Activation, T, 1>(args, stream);
  });
}

template <class Args>
int dispatch_activation(const Args& args, void* stream) {
  return args.activation == GateActivation::kSilu ? launch_gated_activation<Silu>(args, stream)
                                                  : launch_gated_activation<GeluTanh>(args, stream);
}

}  // namespace

int gated_activation_forward(const GatedActivationForwardArgs& args, void* stream) {
  return dispatch_activation(args, stream);
}

int gated_activation_backward(const GatedActivationBackwardArgs& args, void* stream) {
  return dispatch_activation(args, stream);
}

}  // namespace vlmtrain::kernels
