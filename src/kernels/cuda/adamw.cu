#include "kernels/cuda/primitives.h"
#include "vlmtrain/kernels/split_master.h"

namespace vlmtrain::kernels {

namespace {

// A warp processes a moment block of 256 elements at a time. A lane has four neighboring elements
// of each half, so that a warp reads and writes fp32 in whole cache lines.
constexpr int kElementsPerLane = 8;                                            // of a lane in a moment block
constexpr int kElementsPerPack = 4;                                            // neighboring elements of a lane
constexpr int64_t kElementsPerHalfBlock = int64_t{kLanes} * kElementsPerPack;  // of a moment block
static_assert(kElementsPerLane * kLanes == kMomentBlockSize && 2 * kElementsPerHalfBlock == kMomentBlockSize);

/// A lane's elements of a moment block, in fp32.
struct LaneElements {
  float values[kElementsPerLane];
};

/// The position of a lane's elements in a tensor.
struct LanePosition {
  int64_t first;  ///< first element of the moment block
  int lane;

  /// Returns the element at which the lane's pack 0 or 1 begins.
  __device__ __forceinline__ int64_t get_pack_offset(int pack) const {
    return first + pack * kElementsPerHalfBlock + int64_t{lane} * kElementsPerPack;
  }
};

/// Loads a lane's elements; zeros beyond the tensor's `count` elements. `use_packs` as in
/// load_as_fp32().
template <class T>
__device__ __forceinline__ LaneElements load_elements(const T* from, const LanePosition& position, int64_t count,
                                                      bool use_packs) {
  LaneElements elements = {};
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack)
    load_as_fp32<kElementsPerPack>(elements.values + pack * kElementsPerPack, from, position.get_pack_offset(pack),
                                   count, use_packs);
  return elements;
}

/// Stores a lane's elements; nothing beyond the tensor's `count` elements.
template <class T>
__device__ __forceinline__ void store_elements(T* to, const LaneElements& elements, const LanePosition& position,
                                               int64_t count, bool use_packs) {
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack)
    store_from_fp32<kElementsPerPack>(to, elements.values + pack * kElementsPerPack, position.get_pack_offset(pack),
                                      count, use_packs);
}

/// Returns the offset of element `index` of a 16-bit weight that is not dense.
__device__ __forceinline__ int64_t get_weight_offset(const AdamWTensor& tensor, int64_t index) {
  const uint32_t row = static_cast<uint32_t>(index) / tensor.weight_columns;
  return index + int64_t{row} * (tensor.weight_stride - tensor.weight_columns);
}

/// Stores a lane's elements in the 16-bit weight; nothing beyond its end.
template <class T>
__device__ __forceinline__ void store_weight(const AdamWTensor& tensor, const LaneElements& elements,
                                             const LanePosition& position) {
  T* const weight = static_cast<T*>(tensor.weight);
  if (tensor.weight_columns == 0) return store_elements(weight, elements, position, tensor.count, tensor.is_aligned);
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack) {
    const int64_t first = position.get_pack_offset(pack);
    const float* const values = elements.values + pack * kElementsPerPack;
    if (tensor.is_aligned) {
      store_from_fp32<kElementsPerPack>(weight + get_weight_offset(tensor, first), values, 0, tensor.count - first,
                                        /*use_packs=*/true);
    } else {
      for (int i = 0; i < kElementsPerPack; ++i) {
        if (first + i < tensor.count) weight[get_weight_offset(tensor, first + i)] = from_float<T>(values[i]);
      }
    }
  }
}

/// The bits of a lane's 16-bit elements of a moment block.
struct LaneBits {
  uint16_t values[kElementsPerLane];
};

/// Loads a lane's 16-bit elements like load_elements().
__device__ __forceinline__ LaneBits load_bits(const void* from, const LanePosition& position, int64_t count,
                                              bool use_packs) {
  const auto* const elements = static_cast<const uint16_t*>(from);
  LaneBits bits = {};
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack) {
    const int64_t first = position.get_pack_offset(pack);
    uint16_t* const to = bits.values + pack * kElementsPerPack;
    if (use_packs && first + kElementsPerPack <= count) {
      const auto values = load<kElementsPerPack>(elements + first);
      for (int i = 0; i < kElementsPerPack; ++i) to[i] = values.values[i];
    } else {
      for (int i = 0; i < kElementsPerPack; ++i) to[i] = first + i < count ? elements[first + i] : 0;
    }
  }
  return bits;
}

/// Stores a lane's 16-bit elements like store_elements().
__device__ __forceinline__ void store_bits(void* to, const LaneBits& bits, const LanePosition& position, int64_t count,
                                           bool use_packs) {
  auto* const elements = static_cast<uint16_t*>(to);
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack) {
    const int64_t first = position.get_pack_offset(pack);
    const uint16_t* const from = bits.values + pack * kElementsPerPack;
    if (use_packs && first + kElementsPerPack <= count) {
      Pack<uint16_t, kElementsPerPack> values;
      for (int i = 0; i < kElementsPerPack; ++i) values.values[i] = from[i];
      store<kElementsPerPack>(elements + first, values);
    } else {
      for (int i = 0; i < kElementsPerPack; ++i) {
        if (first + i < count) elements[first + i] = from[i];
      }
    }
  }
}

// Each format of masters has functions that load a lane's masters in fp32 and store them and the
// weights.

/// Masters in fp32, with 16-bit copies of type Weight.
template <class Weight>
struct Fp32Masters {
  static __device__ __forceinline__ LaneElements load_master(const AdamWTensor& tensor, const LanePosition& position) {
    return load_elements(static_cast<const float*>(tensor.master), position, tensor.count, tensor.is_aligned);
  }
  static __device__ __forceinline__ void store_master(const AdamWTensor& tensor, const LanePosition& position,
                                                      const LaneElements& master, const AdamWArgs& /*args*/) {
    store_elements(static_cast<float*>(tensor.master), master, position, tensor.count, tensor.is_aligned);
    if (tensor.weight != nullptr) store_weight<Weight>(tensor, master, position);
  }
};

/// Masters in two halves, of which the bf16 weight is one.
struct SplitMasters {
  static __device__ __forceinline__ LaneElements load_master(const AdamWTensor& tensor, const LanePosition& position) {
    const LaneBits weight = load_bits(tensor.weight, position, tensor.count, tensor.is_aligned);
    const LaneBits low_bits = load_bits(tensor.master, position, tensor.count, tensor.is_aligned);
    LaneElements master;
    for (int i = 0; i < kElementsPerLane; ++i)
      master.values[i] = __uint_as_float(join_master({weight.values[i], static_cast<int16_t>(low_bits.values[i])}));
    return master;
  }
  static __device__ __forceinline__ void store_master(const AdamWTensor& tensor, const LanePosition& position,
                                                      const LaneElements& master, const AdamWArgs& /*args*/) {
    LaneBits weight, low_bits;
    for (int i = 0; i < kElementsPerLane; ++i) {
      const SplitMaster halves = split_master(__float_as_uint(master.values[i]));
      weight.values[i] = halves.weight;
      low_bits.values[i] = static_cast<uint16_t>(halves.low_bits);
    }
    store_bits(tensor.weight, weight, position, tensor.count, tensor.is_aligned);
    store_bits(tensor.master, low_bits, position, tensor.count, tensor.is_aligned);
  }
};

/// Returns the random bits of a lane's elements of a moment block: eight 16-bit numbers. `stream`
/// identifies the values that are rounded.
__device__ __forceinline__ RandomBits make_rounding_bits(const AdamWArgs& args, const LanePosition& position,
                                                         uint64_t stream) {
  return philox(args.seed, static_cast<uint64_t>(position.first + int64_t{position.lane} * kElementsPerLane), stream);
}

/// Returns the upper half of an fp32 number, a bf16 number, rounded stochastically: adding random bits
/// to the lower half carries with a probability equal to the truncated fraction.
__device__ __forceinline__ uint16_t round_stochastically(float value, uint32_t random_16_bits) {
  return static_cast<uint16_t>((__float_as_uint(value) + random_16_bits) >> 16);
}

/// No masters: the bf16 weight is rounded stochastically.
struct StochasticMasters {
  static __device__ __forceinline__ LaneElements load_master(const AdamWTensor& tensor, const LanePosition& position) {
    const LaneBits weight = load_bits(tensor.weight, position, tensor.count, tensor.is_aligned);
    LaneElements master;
    for (int i = 0; i < kElementsPerLane; ++i) master.values[i] = __uint_as_float(uint32_t{weight.values[i]} << 16);
    return master;
  }
  static __device__ __forceinline__ void store_master(const AdamWTensor& tensor, const LanePosition& position,
                                                      const LaneElements& master, const AdamWArgs& args) {
    constexpr uint64_t kFirstStream = uint64_t{1} << 40;  // beyond those of moments
    const RandomBits random = make_rounding_bits(args, position, kFirstStream + tensor.tensor_id);
    LaneBits weight;
    for (int i = 0; i < kElementsPerLane; ++i)
      weight.values[i] = round_stochastically(master.values[i], random.get_16_bits(i));
    store_bits(tensor.weight, weight, position, tensor.count, tensor.is_aligned);
  }
};

/// Calls process(i, element) for each of the lane's elements of a tensor that is stored in whole
/// moment blocks.
template <class T, class Function>
__device__ __forceinline__ void load_moment_block(const T* from, const LanePosition& position, Function process) {
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack) {
    const auto elements = load<kElementsPerPack>(from + position.get_pack_offset(pack));
    for (int i = 0; i < kElementsPerPack; ++i) process(pack * kElementsPerPack + i, elements.values[i]);
  }
}

/// Stores produce(i) as the lane's element i of a tensor that is stored in whole moment blocks.
template <class T, class Function>
__device__ __forceinline__ void store_moment_block(T* to, const LanePosition& position, Function produce) {
  for (int pack = 0; pack < kElementsPerLane / kElementsPerPack; ++pack) {
    Pack<T, kElementsPerPack> elements;
    for (int i = 0; i < kElementsPerPack; ++i) elements.values[i] = produce(pack * kElementsPerPack + i);
    store<kElementsPerPack>(to + position.get_pack_offset(pack), elements);
  }
}

constexpr unsigned kThreadsPerBlock = 256;  // divides the threads per multiprocessor of every architecture
constexpr int64_t kWarpsPerBlock = kThreadsPerBlock / kLanes;
constexpr int64_t kMomentBlocksPerThreadBlock = kAdamWBlocksPerThreadBlock;

/// Returns the position of the n-th smallest of 255 bounds, counted from 1, in Eytzinger order: the
/// root of the binary search tree is at 1, the children of k are at 2k and 2k + 1. The bounds that
/// a warp's lanes compare with in one step are then neighbors, in different banks of shared memory
/// up to the sixth step. In ascending order they would be powers of two apart, with eight in one
/// bank. For normally distributed gradients a warp reads shared memory 21 times per two codes
/// instead of 64.
__device__ __forceinline__ unsigned to_eytzinger_index(unsigned n) {
  return (kNumMomentCodes + n) >> __ffs(static_cast<int>(n));
}

// Each format of moments has functions that load and store a lane's elements of a moment (0 or 1).
// `codes` and `bounds` are the moment's tables in shared memory; without kHasCodeTables they are
// not used.

/// Moments in fp32.
struct Fp32Moments {
  static constexpr bool kHasCodeTables = false;

  static __device__ __forceinline__ LaneElements load_moment(const AdamWTensor& tensor, int moment,
                                                             const LanePosition& position, const float* /*codes*/) {
    return load_elements(static_cast<const float*>(tensor.moments[moment]), position, tensor.count, tensor.is_aligned);
  }
  static __device__ __forceinline__ void store_moment(const AdamWTensor& tensor, int moment,
                                                      const LanePosition& position, const LaneElements& elements,
                                                      const AdamWArgs& /*args*/, const float* /*bounds*/) {
    store_elements(static_cast<float*>(tensor.moments[moment]), elements, position, tensor.count, tensor.is_aligned);
  }
};

/// Moments in bf16, stored in whole blocks and rounded stochastically.
struct Bf16Moments {
  static constexpr bool kHasCodeTables = false;

  static __device__ __forceinline__ LaneElements load_moment(const AdamWTensor& tensor, int moment,
                                                             const LanePosition& position, const float* /*codes*/) {
    LaneElements elements;
    load_moment_block(static_cast<const __nv_bfloat16*>(tensor.moments[moment]), position,
                      [&](int i, __nv_bfloat16 value) { elements.values[i] = to_float(value); });
    return elements;
  }
  static __device__ __forceinline__ void store_moment(const AdamWTensor& tensor, int moment,
                                                      const LanePosition& position, const LaneElements& elements,
                                                      const AdamWArgs& args, const float* /*bounds*/) {
    const RandomBits random =
        make_rounding_bits(args, position, uint64_t{tensor.tensor_id} * 2 + static_cast<uint64_t>(moment));
    store_moment_block(static_cast<uint16_t*>(tensor.moments[moment]), position,
                       [&](int i) { return round_stochastically(elements.values[i], random.get_16_bits(i)); });
  }
};

/// Moments in 8 bits as in bitsandbytes: codes relative to the block's largest absolute value.
struct EightBitMoments {
  static constexpr bool kHasCodeTables = true;

  static __device__ __forceinline__ LaneElements load_moment(const AdamWTensor& tensor, int moment,
                                                             const LanePosition& position, const float* codes) {
    const float absmax = tensor.absmax[moment][position.first / kMomentBlockSize];
    LaneElements elements;
    load_moment_block(static_cast<const uint8_t*>(tensor.moments[moment]), position,
                      [&](int i, uint8_t code) { elements.values[i] = __fmul_rn(codes[code], absmax); });
    return elements;
  }

  /// Returns the number of the 255 bounds below the value, which is its code. The bounds are in the
  /// order of to_eytzinger_index().
  static __device__ __forceinline__ int find_moment_code(float value, const float* bounds) {
    int node = 1;
    for (int level_size = 1; level_size < kNumMomentCodes; level_size *= 2)
      node = 2 * node + (bounds[node] < value ? 1 : 0);
    return node - kNumMomentCodes;
  }

  static __device__ __forceinline__ void store_moment(const AdamWTensor& tensor, int moment,
                                                      const LanePosition& position, const LaneElements& elements,
                                                      const AdamWArgs& /*args*/, const float* bounds) {
    constexpr float kMinAbsmax = 1e-38F;  // close to the smallest normal fp32 number; zeros stay zero
    float absmax = 0;
    for (int i = 0; i < kElementsPerLane; ++i) absmax = fmaxf(absmax, fabsf(elements.values[i]));
    for (int mask = kLanes / 2; mask > 0; mask /= 2) absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffffU, absmax, mask));
    const float factor = 1 / fmaxf(absmax, kMinAbsmax);
    store_moment_block(static_cast<uint8_t*>(tensor.moments[moment]), position, [&](int i) {
      return static_cast<uint8_t>(find_moment_code(__fmul_rn(elements.values[i], factor), bounds));
    });
    if (position.lane == 0) tensor.absmax[moment][position.first / kMomentBlockSize] = absmax;
  }
};

/// Bias corrections of the moments after n updates.
struct BiasCorrection {
  float step_size;              // learning rate / (1 − β₁ⁿ)
  float bias_correction2_sqrt;  // √(1 − β₂ⁿ)
};

__device__ __forceinline__ BiasCorrection compute_bias_correction(const AdamWArgs& args, float steps) {
  const double n = steps;
  return {static_cast<float>(args.learning_rate / (1 - pow(args.beta1, n))),
          static_cast<float>(sqrt(1 - pow(args.beta2, n)))};
}

/// Each thread block updates kAdamWBlocksPerThreadBlock moment blocks of one parameter.
template <class Moments, class Masters>
__global__ void adamw_kernel(const __grid_constant__ AdamWArgs args) {
  VLMTRAIN_SHARED(float, codes, Moments::kHasCodeTables ? 2 * kNumMomentCodes : 1);
  VLMTRAIN_SHARED(float, bounds, Moments::kHasCodeTables ? 2 * kNumMomentCodes : 1);
  VLMTRAIN_SHARED(BiasCorrection, shared_correction, 1);
  if (*args.skipped != 0) return;

  int tensor_index = 0;
  while (tensor_index + 1 < args.num_tensors && int64_t{blockIdx.x} >= args.first_block[tensor_index + 1])
    ++tensor_index;
  const AdamWTensor& tensor = args.tensors[tensor_index];
  if (threadIdx.x == 0) shared_correction[0] = compute_bias_correction(args, *tensor.steps);
  if constexpr (Moments::kHasCodeTables) {
    static_assert(kThreadsPerBlock == kNumMomentCodes);  // each thread loads one entry of each table
    for (unsigned table = 0; table < 2 * kNumMomentCodes; table += kNumMomentCodes) {
      codes[table + threadIdx.x] = args.codes[table + threadIdx.x];
      if (threadIdx.x > 0) bounds[table + to_eytzinger_index(threadIdx.x)] = args.bounds[table + threadIdx.x - 1];
    }
  }
  __syncthreads();
  const BiasCorrection correction = shared_correction[0];
  const float divisor = args.divisor != nullptr ? *args.divisor : 1;
  const auto warp_index = static_cast<int64_t>(threadIdx.x / kLanes);
  const int64_t first_block = (int64_t{blockIdx.x} - args.first_block[tensor_index]) * kMomentBlocksPerThreadBlock;

  for (int64_t block = first_block + warp_index; block < first_block + kMomentBlocksPerThreadBlock;
       block += kWarpsPerBlock) {
    if (block * kMomentBlockSize >= tensor.count) return;  // true for the whole warp
    const LanePosition position{block * kMomentBlockSize, static_cast<int>(threadIdx.x % kLanes)};
    const LaneElements gradient = load_elements(tensor.gradient, position, tensor.count, tensor.is_aligned);
    LaneElements master = Masters::load_master(tensor, position);
    LaneElements first_moment = Moments::load_moment(tensor, 0, position, &codes[0]);
    LaneElements second_moment =
        Moments::load_moment(tensor, 1, position, &codes[Moments::kHasCodeTables ? kNumMomentCodes : 0]);
    for (int i = 0; i < kElementsPerLane; ++i) {
      const float g = gradient.values[i] / divisor;
      master.values[i] -= args.decay * master.values[i];
      first_moment.values[i] = args.fp32_betas[0] * first_moment.values[i] + args.one_minus_betas[0] * g;
      second_moment.values[i] = args.fp32_betas[1] * second_moment.values[i] + args.one_minus_betas[1] * g * g;
      master.values[i] -= correction.step_size * first_moment.values[i] /
                          (sqrtf(second_moment.values[i]) / correction.bias_correction2_sqrt + args.epsilon);
    }
    Moments::store_moment(tensor, 0, position, first_moment, args, &bounds[0]);
    Moments::store_moment(tensor, 1, position, second_moment, args,
                          &bounds[Moments::kHasCodeTables ? kNumMomentCodes : 0]);
    Masters::store_master(tensor, position, master, args);
  }
}

template <class Moments, class Masters>
int launch_kernel(const AdamWArgs& args, void* stream) {
  const Dim3 grid{static_cast<unsigned>(args.first_block[args.num_tensors]), 1, 1};
  return launch(adamw_kernel<Moments, Masters>, grid, Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

template <class Moments>
int dispatch_masters(const AdamWArgs& args, void* stream) {
  switch (args.masters) {
    case MasterFormat::kFp32:
      return args.weight_type == ElementType::kHalf ? launch_kernel<Moments, Fp32Masters<__half> >(args, stream)
                                                    : launch_kernel<Moments, Fp32Masters<__nv_bfloat16> >(args, stream);
    case MasterFormat::kSplit:
      return launch_kernel<Moments, SplitMasters>(args, stream);
    case MasterFormat::kStochastic:
      return launch_kernel<Moments, StochasticMasters>(args, stream);
  }
  return 1;  // cudaErrorInvalidValue
}

}  // namespace

int adamw(const AdamWArgs& args, void* stream) {
  switch (args.moments) {
    case MomentFormat::kFp32:
      return dispatch_masters<Fp32Moments>(args, stream);
    case MomentFormat::kBf16:
      return dispatch_masters<Bf16Moments>(args, stream);
    case MomentFormat::k8Bit:
      return dispatch_masters<EightBitMoments>(args, stream);
  }
  return 1;  // cudaErrorInvalidValue
}

}  // namespace vlmtrain::kernels
