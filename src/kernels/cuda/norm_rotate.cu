#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

// A head's features i and i + features / 2 are a pair. Some lanes of a warp, a power of two, take a head of a row
// together: with packs of four pairs so many that each has one pack, else all 32, and lane l the pairs l, l + 32, ….
constexpr unsigned kThreads = kNormRotateWarps * kLanes;
// So that the blocks of a launch (norm_rotate.cpp) are on a large card all at once.
constexpr int kBlocksOfMultiprocessor = 3;
constexpr int kPairs = static_cast<int>(kMostNormedFeatures) / 2 / kLanes;  // of a lane, at most
constexpr int kPackOfPairs = kPairs;

/// A lane's pairs of a head.
struct Pairs {
  float low[kPairs];
  float high[kPairs];
};

/// Where in a head a lane's pairs are.
template <int kCount>
struct Places {
  static constexpr int kPacks = kPairs / kCount;

  int64_t half;
  int lane, lanes;  // which one, and how many share the head

  __device__ __forceinline__ int64_t first(int pack) const { return int64_t{lane + pack * lanes} * kCount; }
  __device__ __forceinline__ bool has(int pack) const { return first(pack) < half; }
};

/// Zeros where the head has no such features.
template <int kCount, class T>
__device__ __forceinline__ Pairs read(const T* from, const Places<kCount>& places) {
  Pairs pairs = {};
  for (int pack = 0; pack < places.kPacks; ++pack) {
    if (!places.has(pack)) continue;
    const auto low = load<kCount>(from + places.first(pack));
    const auto high = load<kCount>(from + places.half + places.first(pack));
    for (int i = 0; i < kCount; ++i) {
      pairs.low[pack * kCount + i] = to_float(low.values[i]);
      pairs.high[pack * kCount + i] = to_float(high.values[i]);
    }
  }
  return pairs;
}

template <int kCount, class T>
__device__ __forceinline__ void write(T* to, const Pairs& pairs, const Places<kCount>& places) {
  for (int pack = 0; pack < places.kPacks; ++pack) {
    if (!places.has(pack)) continue;
    Pack<T, kCount> low, high;
    for (int i = 0; i < kCount; ++i) {
      low.values[i] = from_float<T>(pairs.low[pack * kCount + i]);
      high.values[i] = from_float<T>(pairs.high[pack * kCount + i]);
    }
    store<kCount>(to + places.first(pack), low);
    store<kCount>(to + places.half + places.first(pack), high);
  }
}

template <int kCount>
__device__ __forceinline__ void rotate(Pairs& pairs, const float* cos, const float* sin, float direction,
                                       const Places<kCount>& places) {
  for (int pack = 0; pack < places.kPacks; ++pack) {
    if (!places.has(pack)) continue;
    const auto cosines = load<kCount>(cos + places.first(pack)), sines = load<kCount>(sin + places.first(pack));
    for (int i = 0; i < kCount; ++i) {
      const int pair = pack * kCount + i;
      const float c = cosines.values[i], s = sines.values[i] * direction, a = pairs.low[pair], b = pairs.high[pair];
      pairs.low[pair] = a * c - b * s;
      pairs.high[pair] = b * c + a * s;
    }
  }
}

/// What the features are multiplied by.
template <class T, int kCount>
__device__ __forceinline__ Pairs gains(const void* weight, Gain gain, const Places<kCount>& places) {
  Pairs pairs = read(static_cast<const T*>(weight), places);
  const float added = gain == Gain::kOnePlusWeight ? 1 : 0;
  for (int i = 0; i < kPairs; ++i) {
    pairs.low[i] += added;
    pairs.high[i] += added;
  }
  return pairs;
}

/// A block takes a row.
template <class T, int kCount>
__global__ void forward_kernel(const __grid_constant__ NormRotateForward call, int lanes) {
  const int64_t heads = call.query.heads + call.key.heads, half = call.features / 2, row = blockIdx.x;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t heads_of_warp = kLanes / lanes, heads_of_block = blockDim.x / lanes;
  const Places<kCount> places{half, lane % lanes, lanes};
  // All lanes of a warp go on for as long as one of them has a head.
  for (int64_t first = threadIdx.x / kLanes * heads_of_warp; first < heads; first += heads_of_block) {
    const int64_t head = first + lane / lanes;
    const bool is_query = head < call.query.heads, is_head = head < heads;
    const auto of_part = [&](auto query, auto key) { return is_query ? query : key; };
    const int64_t place = (head - of_part(int64_t{0}, call.query.heads)) * call.features;
    const auto* const from = static_cast<const T*>(of_part(call.query.x, call.key.x)) + row * call.x_stride + place;
    Pairs x = {};
    if (is_head) x = read(from, places);
    float sum = 0;
    for (int i = 0; i < kPairs; ++i) sum += x.low[i] * x.low[i] + x.high[i] * x.high[i];
    const float reciprocal = rsqrtf(sum_of_lanes(sum, lanes) / static_cast<float>(call.features) + call.eps);
    if (!is_head) continue;
    if (places.lane == 0) call.reciprocal[row * heads + head] = reciprocal;
    const Pairs gain = gains<T>(of_part(call.query.weight, call.key.weight), call.gain, places);
    for (int i = 0; i < kPairs; ++i) {
      x.low[i] *= reciprocal * gain.low[i];
      x.high[i] *= reciprocal * gain.high[i];
    }
    rotate(x, call.cos + row * half, call.sin + row * half, 1, places);
    T* const to = static_cast<T*>(of_part(call.query.rotated, call.key.rotated)) + place;
    write(to + row * of_part(call.query.rotated_stride, call.key.rotated_stride), x, places);
  }
}

/// With x̂ = x r, g the gradient rotated back and w the gain: dx = r (g w − x̂ mean(g w x̂)), dw = Σ g x̂ over rows and
/// heads. A block takes a row at a time.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor)
    backward_kernel(const __grid_constant__ NormRotateBackward call, int lanes) {
  const int64_t heads = call.query.heads + call.key.heads, half = call.features / 2;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t warp_of_block = threadIdx.x / kLanes, heads_of_warp = kLanes / lanes;
  const int64_t heads_of_block = kNormRotateWarps * heads_of_warp;
  const Places<kCount> places{half, lane % lanes, lanes};
  Pairs of_query_weight = {}, of_key_weight = {};
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    for (int64_t first = warp_of_block * heads_of_warp; first < heads; first += heads_of_block) {
      const int64_t head = first + lane / lanes;
      const bool is_query = head < call.query.heads, is_head = head < heads;
      const auto of_part = [&](auto query, auto key) { return is_query ? query : key; };
      const int64_t place = (head - of_part(int64_t{0}, call.query.heads)) * call.features;
      Pairs g = {}, x = {}, gain = {};
      if (is_head) {
        gain = gains<T>(of_part(call.query.weight, call.key.weight), call.gain, places);
        const auto* const gradient = static_cast<const T*>(of_part(call.query.gradient, call.key.gradient)) + place;
        g = read(gradient + row * of_part(call.query.gradient_stride, call.key.gradient_stride), places);
        x = read(static_cast<const T*>(of_part(call.query.x, call.key.x)) + row * call.x_stride + place, places);
        rotate(g, call.cos + row * half, call.sin + row * half, -1, places);
      }
      const float reciprocal = is_head ? call.reciprocal[row * heads + head] : 0;
      float sum = 0;
      for (int i = 0; i < kPairs; ++i) {
        const float low = x.low[i] * reciprocal, high = x.high[i] * reciprocal;
        // No reference to either: registers have no addresses.
        of_query_weight.low[i] += is_query ? g.low[i] * low : 0;
        of_query_weight.high[i] += is_query ? g.high[i] * high : 0;
        of_key_weight.low[i] += is_query ? 0 : g.low[i] * low;
        of_key_weight.high[i] += is_query ? 0 : g.high[i] * high;
        g.low[i] *= gain.low[i];
        g.high[i] *= gain.high[i];
        sum += g.low[i] * low + g.high[i] * high;
      }
      const float mean = sum_of_lanes(sum, lanes) / static_cast<float>(call.features);
      if (!is_head) continue;
      for (int i = 0; i < kPairs; ++i) {
        g.low[i] = reciprocal * (g.low[i] - x.low[i] * reciprocal * mean);
        g.high[i] = reciprocal * (g.high[i] - x.high[i] * reciprocal * mean);
      }
      write(static_cast<T*>(of_part(call.query.of_x, call.key.of_x)) + row * call.of_x_stride + place, g, places);
    }
    const auto* const of_values = static_cast<const T*>(call.value.gradient) + row * call.value.gradient_stride;
    T* const copied = static_cast<T*>(call.value.of_x) + row * call.of_x_stride;
    for (int64_t column = int64_t{threadIdx.x} * kCount; column < call.value.heads * call.features;
         column += int64_t{kThreads} * kCount) {
      store<kCount>(copied + column, load<kCount>(of_values + column));
    }
  }
  if (call.of_weights == nullptr) return;
  const int64_t warp = int64_t{blockIdx.x} * kNormRotateWarps + warp_of_block;
  for (int part = 0; part < 2; ++part) {
    Pairs sums = part == 0 ? of_query_weight : of_key_weight;  // unrolled
    for (int i = 0; i < kPairs; ++i) {
      sums.low[i] = sum_between_lanes(sums.low[i], lanes);
      sums.high[i] = sum_between_lanes(sums.high[i], lanes);
    }
    if (lane < lanes) write(call.of_weights + (warp * 2 + part) * call.features, sums, places);
  }
}

int lanes_for(int64_t half) {
  int lanes = 1;
  while (lanes * kPackOfPairs < half) lanes *= 2;
  return lanes;
}

template <class T, class Heads>
bool strides_fit(const Heads& heads, int64_t stride, const void* place) {
  return heads.heads == 0 || in_packs<T, kPackOfPairs>(stride, static_cast<const T*>(place));
}

template <class T>
bool fits(const NormRotateForward& call) {
  if (!in_packs<float, kPackOfPairs>(call.features / 2, call.cos, call.sin)) return false;
  for (const auto* const part : {&call.query, &call.key}) {
    if (!strides_fit<T>(*part, call.x_stride, part->x) || !strides_fit<T>(*part, part->rotated_stride, part->rotated) ||
        !strides_fit<T>(*part, call.features, part->weight))
      return false;
  }
  return true;
}

template <class T>
bool fits(const NormRotateBackward& call) {
  if (!in_packs<float, kPackOfPairs>(call.features / 2, call.cos, call.sin, call.of_weights)) return false;
  for (const auto* const part : {&call.query, &call.key, &call.value}) {
    if (!strides_fit<T>(*part, part->gradient_stride, part->gradient) ||
        !strides_fit<T>(*part, call.of_x_stride, part->of_x))
      return false;
  }
  for (const auto* const part : {&call.query, &call.key}) {
    if (!strides_fit<T>(*part, call.x_stride, part->x) || !strides_fit<T>(*part, call.features, part->weight))
      return false;
  }
  return true;
}

template <class T, int kCount>
int start(const NormRotateForward& call, int lanes, void* stream) {
  // One block, which takes a row's heads as often as there would be blocks.
  const EvenBlocks of_row((call.query.heads + call.key.heads) * lanes, kThreads);
  const Size grid{static_cast<unsigned>(call.rows), 1, 1};
  return launch(forward_kernel<T, kCount>, grid, Size{of_row.threads, 1, 1}, stream, call, lanes);
}

template <class T, int kCount>
int start(const NormRotateBackward& call, int lanes, void* stream) {
  const Size grid{static_cast<unsigned>(call.warps / kNormRotateWarps), 1, 1};
  return launch(backward_kernel<T, kCount>, grid, Size{kThreads, 1, 1}, stream, call, lanes);
}

template <class Call>
int start_for_element(const Call& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    return fits<T>(call) ? start<T, kPackOfPairs>(call, lanes_for(call.features / 2), stream)
                         : start<T, 1>(call, kLanes, stream);
  });
}

}  // namespace

int norm_rotate_forward(const NormRotateForward& call, void* stream) {
  return start_for_element(call, stream);
}

int norm_rotate_backward(const NormRotateBackward& call, void* stream) {
  return start_for_element(call, stream);
}

}  // namespace vlmtrain::kernels
