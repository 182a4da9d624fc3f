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
struct Elements {
  float of[kElements];
};

/// Where they are in a tensor.
struct Places {
  int64_t first;  ///< of the block
  int lane;

  __device__ __forceinline__ int64_t of_pack(int pack) const { return first + pack * kHalf + int64_t{lane} * kPack; }
};

/// Of a tensor of `count` elements.
template <class T>
__device__ __forceinline__ Elements read(const T* from, const Places& places, int64_t count, bool packs) {
  Elements values = {};
  for (int pack = 0; pack < kElements / kPack; ++pack)
    read_in_fp32<kPack>(values.of + pack * kPack, from, places.of_pack(pack), count, packs);
  return values;
}

template <class T>
__device__ __forceinline__ void write(T* to, const Elements& values, const Places& places, int64_t count, bool packs) {
  for (int pack = 0; pack < kElements / kPack; ++pack)
    write_fp32<kPack>(to, values.of + pack * kPack, places.of_pack(pack), count, packs);
}

/// Of a block that is held whole, whatever is done with its elements.
template <class T, class Function>
__device__ __forceinline__ void read_whole(const T* from, const Places& places, Function element) {
  for (int pack = 0; pack < kElements / kPack; ++pack) {
    const auto elements = load<kPack>(from + places.of_pack(pack));
    for (int i = 0; i < kPack; ++i) element(pack * kPack + i, elements.values[i]);
  }
}

template <class T, class Function>
__device__ __forceinline__ void write_whole(T* to, const Places& places, Function element) {
  for (int pack = 0; pack < kElements / kPack; ++pack) {
    Pack<T, kPack> elements;
    for (int i = 0; i < kPack; ++i) elements.values[i] = element(pack * kPack + i);
    store<kPack>(to + places.of_pack(pack), elements);
  }
}

constexpr unsigned kThreads = 256;
constexpr int64_t kWarps = kThreads / kLanes;
/// Blocks of a tensor that a block of threads takes, so that its tables are loaded for many.
constexpr int64_t kBlocksAtATime = kAdamWBlocks;

/// Where the nth smallest of 255 bounds lies, n from 1 on: the root of a tree of binary search at 1, the children of
/// place k at 2k and 2k + 1 (Eytzinger's order). What the lanes of a warp may meet in a step are neighbours then, in
/// different banks of shared memory up to the sixth step; in ascending order they lie powers of two apart, eight in one
/// bank. Of normally distributed gradients a warp reads shared memory 21 times for two codes, and not 64.
__device__ __forceinline__ unsigned place_in_search(unsigned n) {
  return (kMomentCodes + n) >> __ffs(static_cast<int>(n));
}

/// Moments in fp32.
struct Fp32Moments {
  static constexpr bool kHasTables = false;

  static __device__ __forceinline__ Elements expand(const AdamWTensor& tensor, int moment, const Places& places,
                                                    const float* /*codes*/) {
    return read(static_cast<const float*>(tensor.moments[moment]), places, tensor.count, tensor.in_packs);
  }
  static __device__ __forceinline__ void compress(const AdamWTensor& tensor, int moment, const Places& places,
                                                  const Elements& values, const AdamW& /*call*/,
                                                  const float* /*bounds*/) {
    write(static_cast<float*>(tensor.moments[moment]), values, places, tensor.count, tensor.in_packs);
  }
};

/// In bf16, rounded up with the probability of what is cut off. Blocks are held whole.
struct Bf16Moments {
  static constexpr bool kHasTables = false;

  static __device__ __forceinline__ Elements expand(const AdamWTensor& tensor, int moment, const Places& places,
                                                    const float* /*codes*/) {
    Elements values;
    read_whole(static_cast<const __nv_bfloat16*>(tensor.moments[moment]), places,
               [&](int i, __nv_bfloat16 value) { values.of[i] = to_float(value); });
    return values;
  }
  static __device__ __forceinline__ void compress(const AdamWTensor& tensor, int moment, const Places& places,
                                                  const Elements& values, const AdamW& call, const float* /*bounds*/) {
    const auto number_of_lane = static_cast<uint64_t>(places.first + int64_t{places.lane} * kElements);
    const RandomBits random =
        philox(call.seed, number_of_lane, uint64_t{tensor.number} * 2 + static_cast<uint64_t>(moment));
    write_whole(static_cast<uint16_t*>(tensor.moments[moment]), places,
                [&](int i) { return static_cast<uint16_t>((__float_as_uint(values.of[i]) + random.half(i)) >> 16); });
  }
};

/// In 8 bits, as bitsandbytes holds them: a code of the largest absolute value of the block.
struct EightBitMoments {
  static constexpr bool kHasTables = true;

  static __device__ __forceinline__ Elements expand(const AdamWTensor& tensor, int moment, const Places& places,
                                                    const float* codes) {
    const float absmax = tensor.absmax[moment][places.first / kMomentBlock];
    Elements values;
    read_whole(static_cast<const uint8_t*>(tensor.moments[moment]), places,
               [&](int i, uint8_t code) { values.of[i] = __fmul_rn(codes[code], absmax); });
    return values;
  }

  /// How many bounds lie below a value, of 255, which lie in the order of place_in_search().
  static __device__ __forceinline__ int code_of(float value, const float* bounds) {
    int place = 1;
    for (int bounds_of_step = 1; bounds_of_step < kMomentCodes; bounds_of_step *= 2)
      place = 2 * place + (bounds[place] < value ? 1 : 0);
    return place - kMomentCodes;
  }

  static __device__ __forceinline__ void compress(const AdamWTensor& tensor, int moment, const Places& places,
                                                  const Elements& values, const AdamW& /*call*/, const float* bounds) {
    constexpr float kSmallest = 1e-38F;  // of what is divided by: a block of zeros stays one
    float most = 0;
    for (int i = 0; i < kElements; ++i) most = fmaxf(most, fabsf(values.of[i]));
    for (int mask = kLanes / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, mask));
    const float factor = 1 / fmaxf(most, kSmallest);
    write_whole(static_cast<uint8_t*>(tensor.moments[moment]), places,
                [&](int i) { return static_cast<uint8_t>(code_of(__fmul_rn(values.of[i], factor), bounds)); });
    if (places.lane == 0) tensor.absmax[moment][places.first / kMomentBlock] = most;
  }
};

/// What the bias of the moments is corrected by after so many steps.
struct Corrections {
  float rate;  // of a step: learning rate / (1 − β₁ⁿ)
  float root;  // √(1 − β₂ⁿ)
};

__device__ __forceinline__ Corrections corrections(const AdamW& call, float steps) {
  const double n = steps;
  return {static_cast<float>(call.learning_rate / (1 - pow(call.beta1, n))),
          static_cast<float>(sqrt(1 - pow(call.beta2, n)))};
}

template <class Moments, class Weight>
__global__ void adamw_kernel(const __grid_constant__ AdamW call) {
  VLMTRAIN_SHARED(float, codes, Moments::kHasTables ? 2 * kMomentCodes : 1);
  VLMTRAIN_SHARED(float, bounds, Moments::kHasTables ? 2 * kMomentCodes : 1);
  VLMTRAIN_SHARED(Corrections, shared_corrections, 1);
  if (*call.skipped != 0) return;

  int number = 0;
  while (number + 1 < call.tensors && int64_t{blockIdx.x} >= call.first_block[number + 1]) ++number;
  const AdamWTensor& tensor = call.tensor[number];
  if (threadIdx.x == 0) shared_corrections[0] = corrections(call, *tensor.steps);
  if constexpr (Moments::kHasTables) {
    static_assert(kThreads == kMomentCodes);
    for (unsigned table = 0; table < 2 * kMomentCodes; table += kMomentCodes) {
      codes[table + threadIdx.x] = call.codes[table + threadIdx.x];
      if (threadIdx.x > 0) bounds[table + place_in_search(threadIdx.x)] = call.bounds[table + threadIdx.x - 1];
    }
  }
  __syncthreads();
  const Corrections correction = shared_corrections[0];
  const float divisor = call.divisor != nullptr ? *call.divisor : 1;
  const auto warp = static_cast<int64_t>(threadIdx.x / kLanes);
  const int64_t first_block = (int64_t{blockIdx.x} - call.first_block[number]) * kBlocksAtATime;

  for (int64_t block = first_block + warp; block < first_block + kBlocksAtATime; block += kWarps) {
    if (block * kMomentBlock >= tensor.count) return;  // the whole warp
    const Places places{block * kMomentBlock, static_cast<int>(threadIdx.x % kLanes)};
    const Elements gradient = read(tensor.gradient, places, tensor.count, tensor.in_packs);
    Elements master = read(tensor.master, places, tensor.count, tensor.in_packs);
    Elements mean = Moments::expand(tensor, 0, places, &codes[0]);
    Elements square = Moments::expand(tensor, 1, places, &codes[Moments::kHasTables ? kMomentCodes : 0]);
    for (int i = 0; i < kElements; ++i) {
      const float g = gradient.of[i] / divisor;
      master.of[i] -= call.decay * master.of[i];
      mean.of[i] = call.kept[0] * mean.of[i] + call.taken[0] * g;
      square.of[i] = call.kept[1] * square.of[i] + call.taken[1] * g * g;
      master.of[i] -= correction.rate * mean.of[i] / (sqrtf(square.of[i]) / correction.root + call.epsilon);
    }
    Moments::compress(tensor, 0, places, mean, call, &bounds[0]);
    Moments::compress(tensor, 1, places, square, call, &bounds[Moments::kHasTables ? kMomentCodes : 0]);
    write(tensor.master, master, places, tensor.count, tensor.in_packs);
    if (tensor.weight != nullptr) {
      write(static_cast<Weight*>(tensor.weight), master, places, tensor.count, tensor.in_packs);
    }
  }
}

template <class Moments, class Weight>
int start(const AdamW& call, void* stream) {
  const Size grid{static_cast<unsigned>(call.first_block[call.tensors]), 1, 1};
  return launch(adamw_kernel<Moments, Weight>, grid, Size{kThreads, 1, 1}, stream, call);
}

template <class Moments>
int start_with_weights(const AdamW& call, void* stream) {
  return call.weight_element == Element::kHalf ? start<Moments, __half>(call, stream)
                                               : start<Moments, __nv_bfloat16>(call, stream);
}

}  // namespace

int adamw(const AdamW& call, void* stream) {
  switch (call.moments) {
    case MomentsHeld::kFp32:
      return start_with_weights<Fp32Moments>(call, stream);
    case MomentsHeld::kBf16:
      return start_with_weights<Bf16Moments>(call, stream);
    case MomentsHeld::k8Bit:
      return start_with_weights<EightBitMoments>(call, stream);
  }
  return 1;  // cudaErrorInvalidValue
}

}  // namespace vlmtrain::kernels
