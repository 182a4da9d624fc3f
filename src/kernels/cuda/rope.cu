#include "kernels/cuda/kernels.h"
#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kMaxThreads = 512;  // divides the threads per multiprocessor of every architecture

/// Rotates a pack of a head's first half and its partner, the pack `half` elements further.
template <class T, int kCount>
__device__ __forceinline__ void rotate_pack(const T* from, T* to, int64_t half, const float* cos, const float* sin,
                                            float direction) {
  const auto low = load<kCount>(from);
  const auto high = load<kCount>(from + half);
  const auto cosine = load<kCount>(cos);
  const auto sine = load<kCount>(sin);
  Pack<T, kCount> rotated_low, rotated_high;
  for (int i = 0; i < kCount; ++i) {
    const float a = to_float(low.values[i]), b = to_float(high.values[i]);
    const float c = cosine.values[i], s = sine.values[i] * direction;
    rotated_low.values[i] = from_float<T>(a * c - b * s);
    rotated_high.values[i] = from_float<T>(b * c + a * s);
  }
  store<kCount>(to, rotated_low);
  store<kCount>(to + half, rotated_high);
}

/// blockIdx.x is the row, and blockIdx.y a range of its packs of pairs. Each thread processes one
/// pack of each half of a head.
template <class T, int kCount>
__global__ void rope_kernel(const __grid_constant__ RopeArgs args) {
  const int64_t half = args.features / 2, row = blockIdx.x;
  // 32-bit divisions are much cheaper than 64-bit ones.
  const auto packs_per_head = static_cast<unsigned>(half / kCount);
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  int64_t head = index / packs_per_head;
  const int64_t pair = int64_t{index % packs_per_head} * kCount;
  const int64_t angle_offset = row * half + pair;

  const bool is_query = head < args.query.num_heads, is_rotated = head < args.query.num_heads + args.key.num_heads;
  if (head >= args.query.num_heads + args.key.num_heads + args.value.num_heads) return;
  // Constant indices keep the arguments in constant memory instead of copying them to local memory.
  const auto select = [&](auto query, auto key, auto value) { return is_query ? query : is_rotated ? key : value; };
  head -= select(int64_t{0}, args.query.num_heads, args.query.num_heads + args.key.num_heads);
  const auto* const source = static_cast<const T*>(select(args.query.from, args.key.from, args.value.from));
  auto* const destination = static_cast<T*>(select(args.query.to, args.key.to, args.value.to));
  const int64_t head_offset = head * args.features + pair;
  const T* const from =
      source + row * select(args.query.from_stride, args.key.from_stride, args.value.from_stride) + head_offset;
  T* const to =
      destination + row * select(args.query.to_stride, args.key.to_stride, args.value.to_stride) + head_offset;
  if (is_rotated) {
    rotate_pack<T, kCount>(from, to, half, args.cos + angle_offset, args.sin + angle_offset, args.direction);
  } else {
    store<kCount>(to, load<kCount>(from));
    store<kCount>(to + half, load<kCount>(from + half));
  }
}

template <class T>
bool can_use_packs(const RopeArgs& args) {
  constexpr int kCount = kPackElements<T>;
  for (const RopeArgs::Heads* heads : {&args.query, &args.key, &args.value}) {
    if (!can_load_packs<T>(heads->from_stride, heads->from) || !can_load_packs<T>(heads->to_stride, heads->to))
      return false;
  }
  return can_load_packs<float, kCount>(args.features / 2, args.cos, args.sin);
}

template <class T, int kCount>
int launch_kernel(const RopeArgs& args, void* stream) {
  const int64_t packs =
      (args.query.num_heads + args.key.num_heads + args.value.num_heads) * (args.features / 2 / kCount);
  const EvenBlocks row_blocks(packs, kMaxThreads);
  const Dim3 grid{static_cast<unsigned>(args.rows), row_blocks.blocks, 1};
  return launch(rope_kernel<T, kCount>, grid, Dim3{row_blocks.threads, 1, 1}, stream, args);
}

}  // namespace

int rope(const RopeArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_use_packs<T>(args) ? launch_kernel<T, kPackElements<T>>(args, stream)
                                  : launch_kernel<T, 1>(args, stream);
  });
}

namespace {

// Features i and i + features / 2 of a head are a pair. If aligned, a lane has one pack of four
// pairs, and just enough lanes, a power of two, share a head. Otherwise all 32 lanes share a head,
// and lane l has the pairs l, l + 32, ….
constexpr unsigned kThreads = kQkNormRopeWarps * kLanes;
// All blocks of a launch (choose_num_warps() in rope.cpp) are then resident at once on a large GPU.
constexpr int kBlocksPerMultiprocessor = 3;
constexpr int kPairsPerLane = static_cast<int>(kMaxQkNormFeatures) / 2 / kLanes;  // at most
constexpr int kPairsPerPack = kPairsPerLane;

/// A lane's pairs of a head.
struct Pairs {
  float low[kPairsPerLane];
  float high[kPairsPerLane];
};

/// The positions of a lane's pairs in a head.
template <int kCount>
struct PackLayout {
  static constexpr int kPacks = kPairsPerLane / kCount;

  int64_t half;
  int lane, lanes;  // index of the lane among the lanes that share the head, and their number

  /// Returns the first pair of the lane's pack.
  __device__ __forceinline__ int64_t first(int pack) const { return int64_t{lane + pack * lanes} * kCount; }
  /// Returns whether the pack is within the head.
  __device__ __forceinline__ bool has_pack(int pack) const { return first(pack) < half; }
};

/// Loads a lane's pairs; zeros beyond the head's features.
template <int kCount, class T>
__device__ __forceinline__ Pairs load_pairs(const T* from, const PackLayout<kCount>& layout) {
  Pairs pairs = {};
  for (int pack = 0; pack < layout.kPacks; ++pack) {
    if (!layout.has_pack(pack)) continue;
    const auto low = load<kCount>(from + layout.first(pack));
    const auto high = load<kCount>(from + layout.half + layout.first(pack));
    for (int i = 0; i < kCount; ++i) {
      pairs.low[pack * kCount + i] = to_float(low.values[i]);
      pairs.high[pack * kCount + i] = to_float(high.values[i]);
    }
  }
  return pairs;
}

template <int kCount, class T>
__device__ __forceinline__ void store_pairs(T* to, const Pairs& pairs, const PackLayout<kCount>& layout) {
  for (int pack = 0; pack < layout.kPacks; ++pack) {
    if (!layout.has_pack(pack)) continue;
    Pack<T, kCount> low, high;
    for (int i = 0; i < kCount; ++i) {
      low.values[i] = from_float<T>(pairs.low[pack * kCount + i]);
      high.values[i] = from_float<T>(pairs.high[pack * kCount + i]);
    }
    store<kCount>(to + layout.first(pack), low);
    store<kCount>(to + layout.half + layout.first(pack), high);
  }
}

template <int kCount>
__device__ __forceinline__ void rotate_pairs(Pairs& pairs, const float* cos, const float* sin, float direction,
                                             const PackLayout<kCount>& layout) {
  for (int pack = 0; pack < layout.kPacks; ++pack) {
    if (!layout.has_pack(pack)) continue;
    const auto cosines = load<kCount>(cos + layout.first(pack)), sines = load<kCount>(sin + layout.first(pack));
    for (int i = 0; i < kCount; ++i) {
      const int pair = pack * kCount + i;
      const float c = cosines.values[i], s = sines.values[i] * direction, a = pairs.low[pair], b = pairs.high[pair];
      pairs.low[pair] = a * c - b * s;
      pairs.high[pair] = b * c + a * s;
    }
  }
}

/// Loads the gains of a lane's features.
template <class T, int kCount>
__device__ __forceinline__ Pairs load_gains(const void* weight, Gain gain, const PackLayout<kCount>& layout) {
  Pairs pairs = load_pairs(static_cast<const T*>(weight), layout);
  const float weight_offset = gain == Gain::kOnePlusWeight ? 1 : 0;
  for (int i = 0; i < kPairsPerLane; ++i) {
    pairs.low[i] += weight_offset;
    pairs.high[i] += weight_offset;
  }
  return pairs;
}

/// A thread block processes a row.
template <class T, int kCount>
__global__ void forward_kernel(const __grid_constant__ QkNormRopeForwardArgs args, int lanes) {
  const int64_t heads = args.query.num_heads + args.key.num_heads, half = args.features / 2, row = blockIdx.x;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t heads_per_warp = kLanes / lanes, heads_per_block = blockDim.x / lanes;
  const PackLayout<kCount> layout{half, lane % lanes, lanes};
  // All lanes of a warp continue while one of them has a head, because sum_lanes() needs all of
  // them.
  for (int64_t first = threadIdx.x / kLanes * heads_per_warp; first < heads; first += heads_per_block) {
    const int64_t head = first + lane / lanes;
    const bool is_query = head < args.query.num_heads, has_head = head < heads;
    const auto select = [&](auto query, auto key) { return is_query ? query : key; };
    const int64_t head_offset = (head - select(int64_t{0}, args.query.num_heads)) * args.features;
    const auto* const from =
        static_cast<const T*>(select(args.query.x, args.key.x)) + row * args.x_stride + head_offset;
    Pairs x = {};
    if (has_head) x = load_pairs(from, layout);
    float sum = 0;
    for (int i = 0; i < kPairsPerLane; ++i) sum += x.low[i] * x.low[i] + x.high[i] * x.high[i];
    const float rstd = rsqrtf(sum_lanes(sum, lanes) / static_cast<float>(args.features) + args.eps);
    if (!has_head) continue;
    if (layout.lane == 0) args.rstd[row * heads + head] = rstd;
    const Pairs gain = load_gains<T>(select(args.query.weight, args.key.weight), args.gain, layout);
    for (int i = 0; i < kPairsPerLane; ++i) {
      x.low[i] *= rstd * gain.low[i];
      x.high[i] *= rstd * gain.high[i];
    }
    rotate_pairs(x, args.cos + row * half, args.sin + row * half, 1, layout);
    T* const to = static_cast<T*>(select(args.query.rotated, args.key.rotated)) + head_offset;
    store_pairs(to + row * select(args.query.rotated_stride, args.key.rotated_stride), x, layout);
  }
}

/// Computes, for x̂ = x r, the gradient g rotated back and the gain w, dx = r (g w − x̂ mean(g w
/// x̂)), dw = Σ g x̂ over rows and heads. A thread block processes one row at a time.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    backward_kernel(const __grid_constant__ QkNormRopeBackwardArgs args, int lanes) {
  const int64_t heads = args.query.num_heads + args.key.num_heads, half = args.features / 2;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t warp_in_block = threadIdx.x / kLanes, heads_per_warp = kLanes / lanes;
  const int64_t heads_per_block = kQkNormRopeWarps * heads_per_warp;
  const PackLayout<kCount> layout{half, lane % lanes, lanes};
  Pairs query_weight_gradient = {}, key_weight_gradient = {};
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    for (int64_t first = warp_in_block * heads_per_warp; first < heads; first += heads_per_block) {
      const int64_t head = first + lane / lanes;
      const bool is_query = head < args.query.num_heads, has_head = head < heads;
      const auto select = [&](auto query, auto key) { return is_query ? query : key; };
      const int64_t head_offset = (head - select(int64_t{0}, args.query.num_heads)) * args.features;
      Pairs g = {}, x = {}, gain = {};
      if (has_head) {
        gain = load_gains<T>(select(args.query.weight, args.key.weight), args.gain, layout);
        const auto* const gradient =
            static_cast<const T*>(select(args.query.gradient, args.key.gradient)) + head_offset;
        g = load_pairs(gradient + row * select(args.query.gradient_stride, args.key.gradient_stride), layout);
        x = load_pairs(static_cast<const T*>(select(args.query.x, args.key.x)) + row * args.x_stride + head_offset,
                       layout);
        rotate_pairs(g, args.cos + row * half, args.sin + row * half, -1, layout);
      }
      const float rstd = has_head ? args.rstd[row * heads + head] : 0;
      float sum = 0;
      for (int i = 0; i < kPairsPerLane; ++i) {
        const float low = x.low[i] * rstd, high = x.high[i] * rstd;
        // No reference to either struct: an address would force them out of registers.
        query_weight_gradient.low[i] += is_query ? g.low[i] * low : 0;
        query_weight_gradient.high[i] += is_query ? g.high[i] * high : 0;
        key_weight_gradient.low[i] += is_query ? 0 : g.low[i] * low;
        key_weight_gradient.high[i] += is_query ? 0 : g.high[i] * high;
        g.low[i] *= gain.low[i];
        g.high[i] *= gain.high[i];
        sum += g.low[i] * low + g.high[i] * high;
      }
      const float mean = sum_lanes(sum, lanes) / static_cast<float>(args.features);
      if (!has_head) continue;
      for (int i = 0; i < kPairsPerLane; ++i) {
        g.low[i] = rstd * (g.low[i] - x.low[i] * rstd * mean);
        g.high[i] = rstd * (g.high[i] - x.high[i] * rstd * mean);
      }
      store_pairs(static_cast<T*>(select(args.query.dx, args.key.dx)) + row * args.dx_stride + head_offset, g, layout);
    }
    const auto* const value_gradient = static_cast<const T*>(args.value.gradient) + row * args.value.gradient_stride;
    T* const value_dx = static_cast<T*>(args.value.dx) + row * args.dx_stride;
    for (int64_t column = int64_t{threadIdx.x} * kCount; column < args.value.num_heads * args.features;
         column += int64_t{kThreads} * kCount) {
      store<kCount>(value_dx + column, load<kCount>(value_gradient + column));
    }
  }
  if (args.partial_weight_gradients == nullptr) return;
  const int64_t warp = int64_t{blockIdx.x} * kQkNormRopeWarps + warp_in_block;
  for (int weight_index = 0; weight_index < 2; ++weight_index) {
    // The loop is unrolled, so nothing is copied.
    Pairs sums = weight_index == 0 ? query_weight_gradient : key_weight_gradient;
    for (int i = 0; i < kPairsPerLane; ++i) {
      sums.low[i] = sum_across_groups(sums.low[i], lanes);
      sums.high[i] = sum_across_groups(sums.high[i], lanes);
    }
    if (lane < lanes)
      store_pairs(args.partial_weight_gradients + (warp * 2 + weight_index) * args.features, sums, layout);
  }
}

/// Returns the lanes that share a head: the smallest power of two whose packs cover `half` pairs.
int choose_lanes_per_head(int64_t half) {
  int lanes = 1;
  while (lanes * kPairsPerPack < half) lanes *= 2;
  return lanes;
}

/// Returns whether the rows of these heads can be accessed in packs, also if there are no heads.
template <class T, class Heads>
bool can_access_heads_in_packs(const Heads& heads, int64_t stride, const void* pointer) {
  return heads.num_heads == 0 || can_load_packs<T, kPairsPerPack>(stride, static_cast<const T*>(pointer));
}

template <class T>
bool can_use_packs(const QkNormRopeForwardArgs& args) {
  if (!can_load_packs<float, kPairsPerPack>(args.features / 2, args.cos, args.sin)) return false;
  for (const auto* const heads : {&args.query, &args.key}) {
    if (!can_access_heads_in_packs<T>(*heads, args.x_stride, heads->x) ||
        !can_access_heads_in_packs<T>(*heads, heads->rotated_stride, heads->rotated) ||
        !can_access_heads_in_packs<T>(*heads, args.features, heads->weight))
      return false;
  }
  return true;
}

template <class T>
bool can_use_packs(const QkNormRopeBackwardArgs& args) {
  if (!can_load_packs<float, kPairsPerPack>(args.features / 2, args.cos, args.sin, args.partial_weight_gradients))
    return false;
  for (const auto* const heads : {&args.query, &args.key, &args.value}) {
    if (!can_access_heads_in_packs<T>(*heads, heads->gradient_stride, heads->gradient) ||
        !can_access_heads_in_packs<T>(*heads, args.dx_stride, heads->dx))
      return false;
  }
  for (const auto* const heads : {&args.query, &args.key}) {
    if (!can_access_heads_in_packs<T>(*heads, args.x_stride, heads->x) ||
        !can_access_heads_in_packs<T>(*heads, args.features, heads->weight))
      return false;
  }
  return true;
}

template <class T, int kCount>
int launch_kernel(const QkNormRopeForwardArgs& args, int lanes, void* stream) {
  // One block per row, which loops over the row's heads.
  const EvenBlocks row_blocks((args.query.num_heads + args.key.num_heads) * lanes, kThreads);
  const Dim3 grid{static_cast<unsigned>(args.rows), 1, 1};
  return launch(forward_kernel<T, kCount>, grid, Dim3{row_blocks.threads, 1, 1}, stream, args, lanes);
}

template <class T, int kCount>
int launch_kernel(const QkNormRopeBackwardArgs& args, int lanes, void* stream) {
  const Dim3 grid{static_cast<unsigned>(args.warps / kQkNormRopeWarps), 1, 1};
  return launch(backward_kernel<T, kCount>, grid, Dim3{kThreads, 1, 1}, stream, args, lanes);
}

template <class Args>
int dispatch_launch(const Args& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_use_packs<T>(args)
               ? launch_kernel<T, kPairsPerPack>(args, choose_lanes_per_head(args.features / 2), stream)
               : launch_kernel<T, 1>(args, kLanes, stream);
  });
}

}  // namespace

int qk_norm_rope_forward(const QkNormRopeForwardArgs& args, void* stream) {
  return dispatch_launch(args, stream);
}

int qk_norm_rope_backward(const QkNormRopeBackwardArgs& args, void* stream) {
  return dispatch_launch(args, stream);
}

}  // namespace vlmtrain::kernels
