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
  static __device__ __forceinline__ float slope(float x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }
};

/// x / 2 · (1 + tanh u) with u = √(2/π) (x + 0.044715 x³) (Hendrycks and Gimpel 2016, arXiv 1606.08415), which is
/// x σ(2u).
struct GeluTanh {
  static constexpr float kTwice = 1.5957691216057308F;  // 2 √(2/π)
  static constexpr float kCube = 0.044715F;
  static __device__ __forceinline__ float argument(float x) { return kTwice * (x + kCube * x * x * x); }
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(argument(x)); }
  static __device__ __forceinline__ float slope(float x) {
    const float s = sigmoid(argument(x)), rest = sigmoid(-argument(x));
    return s + x * s * rest * kTwice * (1 + 3 * kCube * x * x);
  }
};

/// x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415), and its slope Φ(x) + x φ(x).
struct Gelu {
  static constexpr float kRootOfHalf = 0.7071067811865476F;
  static constexpr float kDensityAtZero = 0.3989422804014327F;  // 1 / √(2π)
  static __device__ __forceinline__ float share(float x) { return 0.5F * erfcf(-x * kRootOfHalf); }
  static __device__ __forceinline__ float value(float x) { return x * share(x); }
  static __device__ __forceinline__ float slope(float x) { return share(x) + x * kDensityAtZero * expf(-0.5F * x * x); }
};

/// x σ(1.702 x), OpenAI's CLIP.
struct QuickGelu {
  static constexpr float kSteepness = 1.702F;
  static __device__ __forceinline__ float value(float x) { return x * sigmoid(kSteepness * x); }
  static __device__ __forceinline__ float slope(float x) {
    return sigmoid(kSteepness * x) * (1 + kSteepness * x * sigmoid(-kSteepness * x));
  }
};

struct Relu {
  static __device__ __forceinline__ float value(float x) { return x > 0 ? x : 0; }
  static __device__ __forceinline__ float slope(float x) { return x > 0 ? 1.0F : 0.0F; }
};

}  // namespace vlmtrain::kernels
