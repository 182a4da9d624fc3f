#pragma once

#include "kernels/cuda/device.h"

namespace vlmtrain::kernels {

// Elementwise functions, each with its slope.

__device__ __forceinline__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

/// x σ(x), and its slope σ (1 + x (1 − σ)). 1 − σ(x) is σ(−x), which loses no bits where σ is almost 1.
struct Silu {
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(x); }
  static __device__ __forceinline__ float derivative(float x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }
};

/// x / 2 · (1 + tanh u) with u = √(2/π) (x + 0.044715 x³) (Hendrycks and Gimpel 2016, arXiv 1606.08415), which is
/// x σ(2u).
struct GeluTanh {
  static constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308F;  // 2 √(2/π)
  static constexpr float kCubicCoefficient = 0.044715F;
  static __device__ __forceinline__ float argument(float x) {
    return kTwoSqrtTwoOverPi * (x + kCubicCoefficient * x * x * x);
  }
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(argument(x)); }
  static __device__ __forceinline__ float derivative(float x) {
    const float s = sigmoid(argument(x)), complement = sigmoid(-argument(x));
    return s + x * s * complement * kTwoSqrtTwoOverPi * (1 + 3 * kCubicCoefficient * x * x);
  }
};

/// x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415), and its slope Φ(x) + x φ(x).
struct Gelu {
  static constexpr float kSqrtHalf = 0.7071067811865476F;
  static constexpr float kDensityAtZero = 0.3989422804014327F;  // 1 / √(2π)
  static __device__ __forceinline__ float cdf(float x) { return 0.5F * erfcf(-x * kSqrtHalf); }
  static __device__ __forceinline__ float value(float x) { return x * cdf(x); }
  static __device__ __forceinline__ float derivative(float x) {
    return cdf(x) + x * kDensityAtZero * expf(-0.5F * x * x);
  }
};

/// x σ(1.702 x), OpenAI's CLIP.
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

}  // namespace vlmtrain::kernels
