#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

// A warp takes a block of 256 elements at a time, whose moments share a scale where they have 8 bits. A lane takes four
// neighbours of each half, so that fp32 is read and written in whole lines.
constexpr int kElements = 8;
constexpr int kPack = 4;
constexpr int64_t kHalf = int64_t{kLanes} * kPack;
static_assert(kElements * kLanes == kMomentBlock && 2 * kHalf == kMomentBlock);

/// A lane's elements of a block, in fp32.
struct LaneElements {
  float values[kElements];
};

/// Where they are in a tensor.
struct LanePosition {
  int64_t first;  ///< of the block
  int lane;

  __device__ __forceinline__ int64_t pack_offset(int pack) const {
    return first + pack * kHalf + int64_t{lane} * kPack;
  }
};

/// Of a tensor of `count` elements.
template <class T>
__device__ __forceinline__ LaneElements load_elements(const T* from, const LanePosition& position, int64_t count,
                                                      bool packs) {
  LaneElements elements = {};
  for (int pack = 0; pack < kElements / kPack; ++pack)
    load_fp32<kPack>(elements.values + pack * kPack, from, position.pack_offset(pack), count, packs);
  return elements;
}

template <class T>
__device__ __forceinline__ void store_elements(T* to, const LaneElements& elements, const LanePosition& position,
                                               int64_t count, bool packs) {
  for (int pack = 0; pack < kElements / kPack; ++pack)
    store_fp32<kPack>(to, elements.values + pack * kPack, position.pack_offset(pack), count, packs);
}

/// Of a block that is held whole, whatever is done with its elements.
template <class T, class Function>
__device__ __forceinline__ void load_block(const T* from, const LanePosition& position, Function process) {
  for (int pack = 0; pack < kElements / kPack; ++pack) {
    const auto elements = load<kPack>(from + position.pack_offset(pack));
    for (int i = 0; i < kPack; ++i) process(pack * kPack + i, elements.values[i]);
  }
}

template <class T, class Function>
__device__ __forceinline__ void store_block(T* to, const LanePosition& position, Function produce) {
  for (int pack = 0; pack < kElements / kPack; ++pack) {
    Pack<T, kPack> elements;
    for (int i = 0; i < kPack; ++i) elements.values[i] = produce(pack * kPack + i);
    store<kPack>(to + position.pack_offset(pack), elements);
  }
}

constexpr unsigned kThreads = 256;
constexpr int64_t kWarps = kThreads / kLanes;
/// Blocks of a tensor that a block of threads takes, so that its tables are loaded for many.
constexpr int64_t kMomentBlocksPerBlock = kAdamWBlocks;

/// Where the nth smallest of 255 bounds lies, n from 1 on: the root of a tree of binary search at 1, the children of
/// place k at 2k and 2k + 1 (Eytzinger's order). What the lanes of a warp may meet in a step are neighbours then, in
/// different banks of shared memory up to the sixth step; in ascending order they lie powers of two apart, eight in one
/// bank. Of normally distributed gradients a warp reads shared memory 21 times for two codes, and not 64.
__device__ __forceinline__ unsigned eytzinger_index(unsigned n) {
  return (kMomentCodes + n) >> __ffs(static_cast<int>(n));
}

/// Moments in fp32.
struct Fp32Moments {
  static constexpr bool kHasTables = false;

  static __device__ __forceinline__ LaneElements load_moment(const AdamWTensor& tensor, int moment,
                                                             const LanePosition& position, const float* /*codes*/) {
    return load_elements(static_cast<const float*>(tensor.moments[moment]), position, tensor.count, tensor.is_aligned);
  }
  static __device__ __forceinline__ void store_moment(const AdamWTensor& tensor, int moment,
                                                      const LanePosition& position, const LaneElements& elements,
                                                      const AdamW& /*call*/, const float* /*bounds*/) {
    store_elements(static_cast<float*>(tensor.moments[moment]), elements, position, tensor.count, tensor.is_aligned);
  }
};

/// In bf16, rounded up with the probability of what is cut off. Blocks are held whole.
struct Bf16Moments {
  static constexpr bool kHasTables = false;

  static __device__ __forceinline__ LaneElements load_moment(const AdamWTensor& tensor, int moment,
                                                             const LanePosition& position, const float* /*codes*/) {
    LaneElements elements;
    load_block(static_cast<const __nv_bfloat16*>(tensor.moments[moment]), position,
               [&](int i, __nv_bfloat16 value) { elements.values[i] = to_float(value); });
    return elements;
  }
  static __device__ __forceinline__ void store_moment(const AdamWTensor& tensor, int moment,
                                                      const LanePosition& position, const LaneElements& elements,
                                                      const AdamW& args, const float* /*bounds*/) {
    const auto lane_counter = static_cast<uint64_t>(position.first + int64_t{position.lane} * kElements);
    const RandomBits random =
        philox(args.seed, lane_counter, uint64_t{tensor.tensor_id} * 2 + static_cast<uint64_t>(moment));
    store_block(static_cast<uint16_t*>(tensor.moments[moment]), position, [&](int i) {
      return static_cast<uint16_t>((__float_as_uint(elements.values[i]) + random.half(i)) >> 16);
    });
  }
};

/// In 8 bits, as bitsandbytes holds them: a code of the largest absolute value of the block.
struct EightBitMoments {
  static constexpr bool kHasTables = true;

  static __device__ __forceinline__ LaneElements load_moment(const AdamWTensor& tensor, int moment,
                                                             const LanePosition& position, const float* codes) {
    const float absmax = tensor.absmax[moment][position.first / kMomentBlock];
    LaneElements elements;
    load_block(static_cast<const uint8_t*>(tensor.moments[moment]), position,
               [&](int i, uint8_t code) { elements.values[i] = __fmul_rn(codes[code], absmax); });
    return elements;
  }

  /// How many bounds lie below a value, of 255, which lie in the order of eytzinger_index().
  static __device__ __forceinline__ int find_code(float value, const float* bounds) {
    int node = 1;
    for (int step_bounds = 1; step_bounds < kMomentCodes; step_bounds *= 2)
      node = 2 * node + (bounds[node] < value ? 1 : 0);
    return node - kMomentCodes;
  }

  static __device__ __forceinline__ void store_moment(const AdamWTensor& tensor, int moment,
                                                      const LanePosition& position, const LaneElements& elements,
                                                      const AdamW& /*call*/, const float* bounds) {
    constexpr float kMinAbsmax = 1e-38F;  // of what is divided by: a block of zeros stays one
    float absmax = 0;
    for (int i = 0; i < kElements; ++i) absmax = fmaxf(absmax, fabsf(elements.values[i]));
    for (int mask = kLanes / 2; mask > 0; mask /= 2) absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffffU, absmax, mask));
    const float factor = 1 / fmaxf(absmax, kMinAbsmax);
    store_block(static_cast<uint8_t*>(tensor.moments[moment]), position,
                [&](int i) { return static_cast<uint8_t>(find_code(__fmul_rn(elements.values[i], factor), bounds)); });
    if (position.lane == 0) tensor.absmax[moment][position.first / kMomentBlock] = absmax;
  }
};

/// What the bias of the moments is corrected by after so many steps.
struct BiasCorrection {
  float rate;  // of a step: learning rate / (1 − β₁ⁿ)
  float root;  // √(1 − β₂ⁿ)
};

__device__ __forceinline__ BiasCorrection compute_bias_correction(const AdamW& args, float steps) {
  const double n = steps;
  return {static_cast<float>(args.learning_rate / (1 - pow(args.beta1, n))),
          static_cast<float>(sqrt(1 - pow(args.beta2, n)))};
}

template <class Moments, class Weight>
__global__ void adamw_kernel(const __grid_constant__ AdamW args) {
  VLMTRAIN_SHARED(float, codes, Moments::kHasTables ? 2 * kMomentCodes : 1);
  VLMTRAIN_SHARED(float, bounds, Moments::kHasTables ? 2 * kMomentCodes : 1);
  VLMTRAIN_SHARED(BiasCorrection, shared_correction, 1);
  if (*args.skipped != 0) return;

  int tensor_index = 0;
  while (tensor_index + 1 < args.tensors && int64_t{blockIdx.x} >= args.first_block[tensor_index + 1]) ++tensor_index;
  const AdamWTensor& tensor = args.tensor[tensor_index];
  if (threadIdx.x == 0) shared_correction[0] = compute_bias_correction(args, *tensor.steps);
  if constexpr (Moments::kHasTables) {
    static_assert(kThreads == kMomentCodes);
    for (unsigned table = 0; table < 2 * kMomentCodes; table += kMomentCodes) {
      codes[table + threadIdx.x] = args.codes[table + threadIdx.x];
      if (threadIdx.x > 0) bounds[table + eytzinger_index(threadIdx.x)] = args.bounds[table + threadIdx.x - 1];
    }
  }
  __syncthreads();
  const BiasCorrection correction = shared_correction[0];
  const float divisor = args.divisor != nullptr ? *args.divisor : 1;
  const auto warp = static_cast<int64_t>(threadIdx.x / kLanes);
  const int64_t first_block = (int64_t{blockIdx.x} - args.first_block[tensor_index]) * kMomentBlocksPerBlock;

  for (int64_t block = first_block + warp; block < first_block + kMomentBlocksPerBlock; block += kWarps) {
    if (block * kMomentBlock >= tensor.count) return;  // the whole warp
    const LanePosition position{block * kMomentBlock, static_cast<int>(threadIdx.x % kLanes)};
    const LaneElements gradient = load_elements(tensor.gradient, position, tensor.count, tensor.is_aligned);
    LaneElements master = load_elements(tensor.master, position, tensor.count, tensor.is_aligned);
    LaneElements mean = Moments::load_moment(tensor, 0, position, &codes[0]);
    LaneElements square = Moments::load_moment(tensor, 1, position, &codes[Moments::kHasTables ? kMomentCodes : 0]);
    for (int i = 0; i < kElements; ++i) {
      const float g = gradient.values[i] / divisor;
      master.values[i] -= args.decay * master.values[i];
      mean.values[i] = args.beta[0] * mean.values[i] + args.one_minus_beta[0] * g;
      square.values[i] = args.beta[1] * square.values[i] + args.one_minus_beta[1] * g * g;
      master.values[i] -= correction.rate * mean.values[i] / (sqrtf(square.values[i]) / correction.root + args.epsilon);
    }
    Moments::store_moment(tensor, 0, position, mean, args, &bounds[0]);
    Moments::store_moment(tensor, 1, position, square, args, &bounds[Moments::kHasTables ? kMomentCodes : 0]);
    store_elements(tensor.master, master, position, tensor.count, tensor.is_aligned);
    if (tensor.weight != nullptr) {
      store_elements(static_cast<Weight*>(tensor.weight), master, position, tensor.count, tensor.is_aligned);
    }
  }
}

template <class Moments, class Weight>
int launch_kernel(const AdamW& args, void* stream) {
  const Size grid{static_cast<unsigned>(args.first_block[args.tensors]), 1, 1};
  return launch(adamw_kernel<Moments, Weight>, grid, Size{kThreads, 1, 1}, stream, args);
}

template <class Moments>
int dispatch_weight_type(const AdamW& args, void* stream) {
  return args.weight_element == ElementType::kHalf ? launch_kernel<Moments, __half>(args, stream)
                                                   : launch_kernel<Moments, __nv_bfloat16>(args, stream);
}

}  // namespace

int adamw(const AdamW& args, void* stream) {
  switch (args.moments) {
    case MomentFormat::kFp32:
      return dispatch_weight_type<Fp32Moments>(args, stream);
    case MomentFormat::kBf16:
      return dispatch_weight_type<Bf16Moments>(args, stream);
    case MomentFormat::k8Bit:
      return dispatch_weight_type<EightBitMoments>(args, stream);
  }
  return 1;  // cudaErrorInvalidValue
}

}  // namespace vlmtrain::kernels
