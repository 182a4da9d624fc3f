#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

// A warp takes a head of a row at a time; lane l has the pairs l, l + 32, … of its features i and i + features / 2.
constexpr int64_t kWarps = kNormRotateWarps;
constexpr unsigned kThreads = kWarps * kLanes;
constexpr int kMostPairs = static_cast<int>(kMostNormedFeatures) / 2 / kLanes;  // of a lane

/// A lane's pairs of a head.
struct Pairs {
  float low[kMostPairs];
  float high[kMostPairs];
};

/// Zeros where the head has no such features.
template <class T>
__device__ __forceinline__ Pairs read(const T* from, int64_t half, int lane) {
  Pairs pairs;
  for (int i = 0; i < kMostPairs; ++i) {
    const int64_t pair = lane + i * kLanes;
    pairs.low[i] = pair < half ? to_float(from[pair]) : 0;
    pairs.high[i] = pair < half ? to_float(from[pair + half]) : 0;
  }
  return pairs;
}

template <class T>
__device__ __forceinline__ void write(T* to, const Pairs& pairs, int64_t half, int lane) {
  for (int i = 0; i < kMostPairs; ++i) {
    const int64_t pair = lane + i * kLanes;
    if (pair >= half) continue;
    to[pair] = from_float<T>(pairs.low[i]);
    to[pair + half] = from_float<T>(pairs.high[i]);
  }
}

__device__ __forceinline__ void rotate(Pairs& pairs, const float* cos, const float* sin, float direction, int64_t half,
                                       int lane) {
  for (int i = 0; i < kMostPairs; ++i) {
    const int64_t pair = lane + i * kLanes;
    if (pair >= half) continue;
    const float c = cos[pair], s = sin[pair] * direction, a = pairs.low[i], b = pairs.high[i];
    pairs.low[i] = a * c - b * s;
    pairs.high[i] = b * c + a * s;
  }
}

/// What the features are multiplied by.
template <class T>
__device__ __forceinline__ Pairs gains(const void* weight, Gain gain, int64_t half, int lane) {
  Pairs pairs = read(static_cast<const T*>(weight), half, lane);
  const float added = gain == Gain::kOnePlusWeight ? 1 : 0;
  for (int i = 0; i < kMostPairs; ++i) {
    pairs.low[i] += added;
    pairs.high[i] += added;
  }
  return pairs;
}

template <class T>
__global__ void forward_kernel(const __grid_constant__ NormRotateForward call) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t heads = call.query.heads + call.key.heads, half = call.features / 2;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (index >= call.rows * heads) return;
  const int64_t row = index / heads, head = index % heads;
  const bool is_query = head < call.query.heads;
  const NormRotateForward::Heads& part = is_query ? call.query : call.key;
  const int64_t place = (is_query ? head : head - call.query.heads) * call.features;

  Pairs x = read(static_cast<const T*>(part.x) + row * call.x_stride + place, half, lane);
  float sum = 0;
  for (int i = 0; i < kMostPairs; ++i) sum += x.low[i] * x.low[i] + x.high[i] * x.high[i];
  const float reciprocal = rsqrtf(sum_of_warp(sum) / static_cast<float>(call.features) + call.eps);
  if (lane == 0) call.reciprocal[index] = reciprocal;
  const Pairs gain = gains<T>(part.weight, call.gain, half, lane);
  for (int i = 0; i < kMostPairs; ++i) {
    x.low[i] *= reciprocal * gain.low[i];
    x.high[i] *= reciprocal * gain.high[i];
  }
  rotate(x, call.cos + row * half, call.sin + row * half, 1, half, lane);
  write(static_cast<T*>(part.rotated) + row * part.rotated_stride + place, x, half, lane);
}

/// With x̂ = x r, g the gradient rotated back and w the gain: dx = r (g w − x̂ mean(g w x̂)), dw = Σ g x̂ over rows and
/// heads.
template <class T>
__global__ void backward_kernel(const __grid_constant__ NormRotateBackward call) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  const int64_t normed = call.query.heads + call.key.heads, heads = normed + call.value.heads;
  const int64_t half = call.features / 2;
  Pairs of_weight[2] = {};
  for (int64_t index = warp; index < call.rows * heads; index += int64_t{gridDim.x} * kWarps) {
    const int64_t row = index / heads, head = index % heads;
    const bool is_query = head < call.query.heads, is_value = head >= normed;
    const NormRotateBackward::Heads& part = is_query ? call.query : is_value ? call.value : call.key;
    const int64_t place = (is_query ? head : is_value ? head - normed : head - call.query.heads) * call.features;
    Pairs g = read(static_cast<const T*>(part.gradient) + row * part.gradient_stride + place, half, lane);
    T* const of_x = static_cast<T*>(part.of_x) + row * call.of_x_stride + place;
    if (is_value) {
      write(of_x, g, half, lane);
      continue;
    }
    rotate(g, call.cos + row * half, call.sin + row * half, -1, half, lane);
    const float reciprocal = call.reciprocal[row * normed + head];
    const Pairs x = read(static_cast<const T*>(part.x) + row * call.x_stride + place, half, lane);
    const Pairs gain = gains<T>(part.weight, call.gain, half, lane);
    float sum = 0;
    for (int i = 0; i < kMostPairs; ++i) {
      const float low = x.low[i] * reciprocal, high = x.high[i] * reciprocal;
      of_weight[is_query ? 0 : 1].low[i] += g.low[i] * low;
      of_weight[is_query ? 0 : 1].high[i] += g.high[i] * high;
      g.low[i] *= gain.low[i];
      g.high[i] *= gain.high[i];
      sum += g.low[i] * low + g.high[i] * high;
    }
    const float mean = sum_of_warp(sum) / static_cast<float>(call.features);
    for (int i = 0; i < kMostPairs; ++i) {
      g.low[i] = reciprocal * (g.low[i] - x.low[i] * reciprocal * mean);
      g.high[i] = reciprocal * (g.high[i] - x.high[i] * reciprocal * mean);
    }
    write(of_x, g, half, lane);
  }
  if (call.of_weights == nullptr) return;
  for (int part = 0; part < 2; ++part)
    write(call.of_weights + (warp * 2 + part) * call.features, of_weight[part], half, lane);
}

}  // namespace

int norm_rotate_forward(const NormRotateForward& call, void* stream) {
  const unsigned blocks = blocks_for(call.rows * (call.query.heads + call.key.heads), kWarps);
  return with_element(call.element, [&](auto zero) {
    return launch(forward_kernel<decltype(zero)>, Size{blocks, 1, 1}, Size{kThreads, 1, 1}, stream, call);
  });
}

int norm_rotate_backward(const NormRotateBackward& call, void* stream) {
  const Size grid{static_cast<unsigned>(call.warps / kWarps), 1, 1};
  return with_element(call.element, [&](auto zero) {
    return launch(backward_kernel<decltype(zero)>, grid, Size{kThreads, 1, 1}, stream, call);
  });
}

}  // namespace vlmtrain::kernels
