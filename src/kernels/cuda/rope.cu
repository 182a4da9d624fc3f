#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kMaxThreadsPerBlock = 512;  // divides the threads per multiprocessor of every architecture

/// Rotates a pack of a head's first half and its partner, the pack `half_features` elements
/// further.
template <class T, int kPackSize>
__device__ __forceinline__ void rotate_pack(const T* from, T* to, int64_t half_features, const float* cos,
                                            const float* sin, float direction) {
  const auto low = load<kPackSize>(from);
  const auto high = load<kPackSize>(from + half_features);
  const auto cosine = load<kPackSize>(cos);
  const auto sine = load<kPackSize>(sin);
  Pack<T, kPackSize> rotated_low, rotated_high;
  for (int i = 0; i < kPackSize; ++i) {
    const float a = to_float(low.values[i]), b = to_float(high.values[i]);
    const float c = cosine.values[i], s = sine.values[i] * direction;
    rotated_low.values[i] = from_float<T>(a * c - b * s);
    rotated_high.values[i] = from_float<T>(b * c + a * s);
  }
  store<kPackSize>(to, rotated_low);
  store<kPackSize>(to + half_features, rotated_high);
}

/// blockIdx.x is the row, and blockIdx.y a range of its packs of pairs. Each thread processes one
/// pack of each half of a head.
template <class T, int kPackSize>
__global__ void rope_kernel(const __grid_constant__ RopeArgs args) {
  const int64_t half_features = args.features / 2, row = blockIdx.x;
  // 32-bit divisions are much cheaper than 64-bit ones.
  const auto packs_per_head = static_cast<unsigned>(half_features / kPackSize);
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  int64_t head = index / packs_per_head;
  const int64_t pair = int64_t{index % packs_per_head} * kPackSize;
  const int64_t angle_offset = row * half_features + pair;

  const bool is_query = head < args.query.num_heads, is_rotated = head < args.query.num_heads + args.key.num_heads;
  if (head >= args.query.num_heads + args.key.num_heads + args.value.num_heads) return;
  // Constant indices keep the arguments in constant memory instead of copying them to local memory.
  const auto select_head_argument = [&](auto query, auto key, auto value) {
    return is_query ? query : is_rotated ? key : value;
  };
  head -= select_head_argument(int64_t{0}, args.query.num_heads, args.query.num_heads + args.key.num_heads);
  const auto* const source =
      static_cast<const T*>(select_head_argument(args.query.from, args.key.from, args.value.from));
  auto* const destination = static_cast<T*>(select_head_argument(args.query.to, args.key.to, args.value.to));
  const int64_t head_offset = head * args.features + pair;
  const T* const from =
      source + row * select_head_argument(args.query.from_stride, args.key.from_stride, args.value.from_stride) +
      head_offset;
  T* const to = destination +
                row * select_head_argument(args.query.to_stride, args.key.to_stride, args.value.to_stride) +
                head_offset;
  if (is_rotated) {
    rotate_pack<T, kPackSize>(from, to, half_features, args.cos + angle_offset, args.sin + angle_offset,
                              args.direction);
  } else {
    store<kPackSize>(to, load<kPackSize>(from));
    store<kPackSize>(to + half_features, load<kPackSize>(from + half_features));
  }
}

template <class T>
bool can_use_packs(const RopeArgs& args) {
  constexpr int kPackSize = kMaxPackSize<T>;
  for (const RopeArgs::Heads* heads : {&args.query, &args.key, &args.value}) {
    if (!can_load_packs<T>(heads->from_stride, heads->from) || !can_load_packs<T>(heads->to_stride, heads->to))
      return false;
  }
  return can_load_packs<float, kPackSize>(args.features / 2, args.cos, args.sin);
}

template <class T, int kPackSize>
int launch_kernel(const RopeArgs& args, void* stream) {
  const int64_t packs =
      (args.query.num_heads + args.key.num_heads + args.value.num_heads) * (args.features / 2 / kPackSize);
  const BalancedBlocks row_blocks(packs, kMaxThreadsPerBlock);
  const Dim3 grid{static_cast<unsigned>(args.rows), row_blocks.blocks, 1};
  return launch(rope_kernel<T, kPackSize>, grid, Dim3{row_blocks.threads, 1, 1}, stream, args);
}

}  // namespace

int rope(const RopeArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_use_packs<T>(args) ? launch_kernel<T, kMaxPackSize<T>>(args, stream) : launch_kernel<T, 1>(args, stream);
  });
}

namespace {

// Features i and i + features / 2 of a head are a pair. If aligned, a lane has one pack of four
// pairs, and just enough lanes, a power of two, share a head. Otherwise all 32 lanes share a head,
// and lane l has the pairs l, l + 32, ….
constexpr unsigned kThreadsPerBlock = kQkNormRopeWarpsPerBlock * kLanes;
// All blocks of a launch (choose_num_warps() in rope.cpp) are then resident at once on a large GPU.
constexpr int kBlocksPerMultiprocessor = 3;
constexpr int kPairsPerLane = static_cast<int>(kMaxQkNormFeatures) / 2 / kLanes;  // at most
constexpr int kPairsPerPack = kPairsPerLane;

/// A lane's pairs of a head.
struct LanePairs {
  float low[kPairsPerLane];
  float high[kPairsPerLane];
};

/// The positions of a lane's pairs in a head.
template <int kPackSize>
struct PackLayout {
  static constexpr int kNumPacks = kPairsPerLane / kPackSize;

  int64_t half_features;
  int lane, lanes;  // index of the lane among the lanes that share the head, and their number

  /// Returns the first pair of the lane's pack.
  __device__ __forceinline__ int64_t get_first_pair_index(int pack) const {
    return int64_t{lane + pack * lanes} * kPackSize;
  }
  /// Returns whether the pack is within the head.
  __device__ __forceinline__ bool has_pack(int pack) const { return get_first_pair_index(pack) < half_features; }
};

/// Loads a lane's pairs; zeros beyond the head's features.
template <int kPackSize, class T>
__device__ __forceinline__ LanePairs load_pairs(const T* from, const PackLayout<kPackSize>& layout) {
  LanePairs pairs = {};
  for (int pack = 0; pack < layout.kNumPacks; ++pack) {
    if (!layout.has_pack(pack)) continue;
    const auto low = load<kPackSize>(from + layout.get_first_pair_index(pack));
    const auto high = load<kPackSize>(from + layout.half_features + layout.get_first_pair_index(pack));
    for (int i = 0; i < kPackSize; ++i) {
      pairs.low[pack * kPackSize + i] = to_float(low.values[i]);
      pairs.high[pack * kPackSize + i] = to_float(high.values[i]);
    }
  }
  return pairs;
}

template <int kPackSize, class T>
__device__ __forceinline__ void store_pairs(T* to, const LanePairs& pairs, const PackLayout<kPackSize>& layout) {
  for (int pack = 0; pack < layout.kNumPacks; ++pack) {
    if (!layout.has_pack(pack)) continue;
    Pack<T, kPackSize> low, high;
    for (int i = 0; i < kPackSize; ++i) {
      low.values[i] = from_float<T>(pairs.low[pack * kPackSize + i]);
      high.values[i] = from_float<T>(pairs.high[pack * kPackSize + i]);
    }
    store<kPackSize>(to + layout.get_first_pair_index(pack), low);
    store<kPackSize>(to + layout.half_features + layout.get_first_pair_index(pack), high);
  }
}

template <int kPackSize>
__device__ __forceinline__ void rotate_pairs(LanePairs& pairs, const float* cos, const float* sin, float direction,
                                             const PackLayout<kPackSize>& layout) {
  for (int pack = 0; pack < layout.kNumPacks; ++pack) {
    if (!layout.has_pack(pack)) continue;
    const auto cosines = load<kPackSize>(cos + layout.get_first_pair_index(pack)),
               sines = load<kPackSize>(sin + layout.get_first_pair_index(pack));
    for (int i = 0; i < kPackSize; ++i) {
      const int pair = pack * kPackSize + i;
      const float c = cosines.values[i], s = sines.values[i] * direction, a = pairs.low[pair], b = pairs.high[pair];
      pairs.low[pair] = a * c - b * s;
      pairs.high[pair] = b * c + a * s;
    }
  }
}

/// Loads the gains of a lane's features.
template <class T, int kPackSize>
__device__ __forceinline__ LanePairs load_gains(const void* weight, NormGain gain,
                                                const PackLayout<kPackSize>& layout) {
  LanePairs pairs = load_pairs(static_cast<const T*>(weight), layout);
  const float weight_offset = gain == NormGain::kOnePlusWeight ? 1 : 0;
  for (int i = 0; i < kPairsPerLane; ++i) {
    pairs.low[i] += weight_offset;
    pairs.high[i] += weight_offset;
  }
  return pairs;
}

/// A thread block processes a row.
template <class T, int kPackSize>
__global__ void forward_kernel(const __grid_constant__ QkNormRopeForwardArgs args, int lanes) {
  const int64_t num_heads = args.query.num_heads + args.key.num_heads, half_features = args.features / 2,
                row = blockIdx.x;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t heads_per_warp = kLanes / lanes, heads_per_block = blockDim.x / lanes;
  const PackLayout<kPackSize> layout{half_features, lane % lanes, lanes};
  // All lanes of a warp continue while one of them has a head, because sum_within_lane_groups()
  // needs all of them.
  for (int64_t first = threadIdx.x / kLanes * heads_per_warp; first < num_heads; first += heads_per_block) {
    const int64_t head = first + lane / lanes;
    const bool is_query = head < args.query.num_heads, has_head = head < num_heads;
    const auto select_head_argument = [&](auto query, auto key) { return is_query ? query : key; };
    const int64_t head_offset = (head - select_head_argument(int64_t{0}, args.query.num_heads)) * args.features;
    const auto* const from =
        static_cast<const T*>(select_head_argument(args.query.x, args.key.x)) + row * args.x_stride + head_offset;
    LanePairs x = {};
    if (has_head) x = load_pairs(from, layout);
    float sum = 0;
    for (int i = 0; i < kPairsPerLane; ++i) sum += x.low[i] * x.low[i] + x.high[i] * x.high[i];
    const float rstd = rsqrtf(sum_within_lane_groups(sum, lanes) / static_cast<float>(args.features) + args.eps);
    if (!has_head) continue;
    if (layout.lane == 0) args.rstd[row * num_heads + head] = rstd;
    const LanePairs gain = load_gains<T>(select_head_argument(args.query.weight, args.key.weight), args.gain, layout);
    for (int i = 0; i < kPairsPerLane; ++i) {
      x.low[i] *= rstd * gain.low[i];
      x.high[i] *= rstd * gain.high[i];
    }
    rotate_pairs(x, args.cos + row * half_features, args.sin + row * half_features, 1, layout);
    T* const to = static_cast<T*>(select_head_argument(args.query.rotated, args.key.rotated)) + head_offset;
    store_pairs(to + row * select_head_argument(args.query.rotated_stride, args.key.rotated_stride), x, layout);
  }
}

/// Computes, for x̂ = x r, the gradient g rotated back and the gain w, dx = r (g w − x̂ mean(g w
/// x̂)), dw = Σ g x̂ over rows and heads. A thread block processes one row at a time.
template <class T, int kPackSize>
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerMultiprocessor)
    backward_kernel(const __grid_constant__ QkNormRopeBackwardArgs args, int lanes) {
  const int64_t num_heads = args.query.num_heads + args.key.num_heads, half_features = args.features / 2;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t warp_index_in_block = threadIdx.x / kLanes, heads_per_warp = kLanes / lanes;
  const int64_t heads_per_block = kQkNormRopeWarpsPerBlock * heads_per_warp;
  const PackLayout<kPackSize> layout{half_features, lane % lanes, lanes};
  LanePairs query_weight_gradient = {}, key_weight_gradient = {};
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    for (int64_t first = warp_index_in_block * heads_per_warp; first < num_heads; first += heads_per_block) {
      const int64_t head = first + lane / lanes;
      const bool is_query = head < args.query.num_heads, has_head = head < num_heads;
      const auto select_head_argument = [&](auto query, auto key) { return is_query ? query : key; };
      const int64_t head_offset = (head - select_head_argument(int64_t{0}, args.query.num_heads)) * args.features;
      LanePairs g = {}, x = {}, gain = {};
      if (has_head) {
        gain = load_gains<T>(select_head_argument(args.query.weight, args.key.weight), args.gain, layout);
        const auto* const gradient =
            static_cast<const T*>(select_head_argument(args.query.gradient, args.key.gradient)) + head_offset;
        g = load_pairs(gradient + row * select_head_argument(args.query.gradient_stride, args.key.gradient_stride),
                       layout);
        x = load_pairs(
            static_cast<const T*>(select_head_argument(args.query.x, args.key.x)) + row * args.x_stride + head_offset,
            layout);
        rotate_pairs(g, args.cos + row * half_features, args.sin + row * half_features, -1, layout);
      }
      const float rstd = has_head ? args.rstd[row * num_heads + head] : 0;
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
      const float mean = sum_within_lane_groups(sum, lanes) / static_cast<float>(args.features);
      if (!has_head) continue;
      for (int i = 0; i < kPairsPerLane; ++i) {
        g.low[i] = rstd * (g.low[i] - x.low[i] * rstd * mean);
        g.high[i] = rstd * (g.high[i] - x.high[i] * rstd * mean);
      }
      store_pairs(
          static_cast<T*>(select_head_argument(args.query.dx, args.key.dx)) + row * args.dx_stride + head_offset, g,
          layout);
    }
    const auto* const value_gradient = static_cast<const T*>(args.value.gradient) + row * args.value.gradient_stride;
    T* const value_dx = static_cast<T*>(args.value.dx) + row * args.dx_stride;
    for (int64_t column = int64_t{threadIdx.x} * kPackSize; column < args.value.num_heads * args.features;
         column += int64_t{kThreadsPerBlock} * kPackSize) {
      store<kPackSize>(value_dx + column, load<kPackSize>(value_gradient + column));
    }
  }
  if (args.partial_weight_gradients == nullptr) return;
  const int64_t warp_index = int64_t{blockIdx.x} * kQkNormRopeWarpsPerBlock + warp_index_in_block;
  for (int weight_index = 0; weight_index < 2; ++weight_index) {
    // The loop is unrolled, so nothing is copied.
    LanePairs sums = weight_index == 0 ? query_weight_gradient : key_weight_gradient;
    for (int i = 0; i < kPairsPerLane; ++i) {
      sums.low[i] = sum_across_lane_groups(sums.low[i], lanes);
      sums.high[i] = sum_across_lane_groups(sums.high[i], lanes);
    }
    if (lane < lanes)
      store_pairs(args.partial_weight_gradients + (warp_index * 2 + weight_index) * args.features, sums, layout);
  }
}

/// Returns the lanes that share a head: the smallest power of two whose packs cover `half_features`
/// pairs.
int choose_num_lanes_per_head(int64_t half_features) {
  int lanes = 1;
  while (lanes * kPairsPerPack < half_features) lanes *= 2;
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

template <class T, int kPackSize>
int launch_kernel(const QkNormRopeForwardArgs& args, int lanes, void* stream) {
  // One block per row, which loops over the row's heads.
  const BalancedBlocks row_blocks((args.query.num_heads + args.key.num_heads) * lanes, kThreadsPerBlock);
  const Dim3 grid{static_cast<unsigned>(args.rows), 1, 1};
  return launch(forward_kernel<T, kPackSize>, grid, Dim3{row_blocks.threads, 1, 1}, stream, args, lanes);
}

template <class T, int kPackSize>
int launch_kernel(const QkNormRopeBackwardArgs& args, int lanes, void* stream) {
  const Dim3 grid{static_cast<unsigned>(args.warps / kQkNormRopeWarpsPerBlock), 1, 1};
  return launch(backward_kernel<T, kPackSize>, grid, Dim3{kThreadsPerBlock, 1, 1}, stream, args, lanes);
}

template <class Args>
int dispatch_launch(const Args& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_use_packs<T>(args)
               ? launch_kernel<T, kPairsPerPack>(args, choose_num_lanes_per_head(args.features / 2), stream)
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
