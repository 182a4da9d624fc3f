#pragma once

#include "kernels/cuda/device.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

// The launchers of all kernels, each implemented in the file of its kernel. launchers.h documents
// the arguments and the result.
#define VLMTRAIN_ENTRY_POINT(function, Args) int function(const Args& args, void* stream);
VLMTRAIN_KERNEL_TABLE(VLMTRAIN_SKIP, VLMTRAIN_ENTRY_POINT)
#undef VLMTRAIN_ENTRY_POINT

__device__ __forceinline__ float to_float(float value) {
  return value;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float to_float(__half value) {
  return __half2float(value);
}

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

/// Maximum bytes that one instruction of a thread reads or writes.
inline constexpr int kPackBytes = 16;
template <class T>
constexpr int kMaxPackSize = kPackBytes / static_cast<int>(sizeof(T));

/// kPackSize neighboring elements, which are read or written at once.
template <class T, int kPackSize>
struct alignas(sizeof(T) * kPackSize) Pack {
  T values[kPackSize];
};

template <int kPackSize, class T>
__device__ __forceinline__ Pack<T, kPackSize> load(const T* from) {
  return *assume_aligned(reinterpret_cast<const Pack<T, kPackSize>*>(from));
}

template <int kPackSize, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, kPackSize>& pack) {
  store_vectorized(assume_aligned(reinterpret_cast<Pack<T, kPackSize>*>(to)), pack);
}

/// Loads elements [first, first + kPackSize) of the `count` elements at `from` as fp32; zeros
/// beyond the end. `use_packs`: whole packs may be read, because `from` and `first` are aligned.
template <int kPackSize, class T>
__device__ __forceinline__ void load_as_fp32(float* to, const T* from, int64_t first, int64_t count, bool use_packs) {
  if (use_packs && first + kPackSize <= count) {
    const auto pack = load<kPackSize>(from + first);
    for (int i = 0; i < kPackSize; ++i) to[i] = to_float(pack.values[i]);
  } else {
    for (int i = 0; i < kPackSize; ++i) to[i] = first + i < count ? to_float(from[first + i]) : 0;
  }
}

/// Stores kPackSize elements like load_as_fp32(); nothing beyond the end.
template <int kPackSize, class T>
__device__ __forceinline__ void store_from_fp32(T* to, const float* from, int64_t first, int64_t count,
                                                bool use_packs) {
  if (use_packs && first + kPackSize <= count) {
    Pack<T, kPackSize> pack;
    for (int i = 0; i < kPackSize; ++i) pack.values[i] = from_float<T>(from[i]);
    store<kPackSize>(to + first, pack);
  } else {
    for (int i = 0; i < kPackSize; ++i) {
      if (first + i < count) to[first + i] = from_float<T>(from[i]);
    }
  }
}

/// Returns whether rows of this many columns at these addresses can be read and written in packs of
/// kPackSize elements. Null pointers are ignored.
template <class T, int kPackSize = kMaxPackSize<T>, class... Pointee>
bool can_load_packs(int64_t columns, const Pointee*... pointers) {
  constexpr uintptr_t kBytes = sizeof(T) * kPackSize;
  return columns % kPackSize == 0 && ((reinterpret_cast<uintptr_t>(pointers) % kBytes == 0) && ...);
}

/// Returns whether rows with these numbers of elements between them all begin at whole packs if the
/// first row does.
template <int kPackSize, class... Stride>
bool have_pack_strides(Stride... strides) {
  return ((strides % kPackSize == 0) && ...);
}

/// Returns function(zero of the C++ type of `element`); cudaErrorInvalidValue for another value.
template <class Function>
int dispatch_element_type(ElementType element, Function function) {
  switch (element) {
    case ElementType::kFloat:
      return function(float{});
    case ElementType::kBFloat16:
      return function(__nv_bfloat16{});
    case ElementType::kHalf:
      return function(__half{});
  }
  return 1;  // cudaErrorInvalidValue
}

/// Returns ⌈count / block_size⌉.
inline unsigned count_blocks(int64_t count, int64_t block_size) {
  return static_cast<unsigned>((count + block_size - 1) / block_size);
}

inline constexpr int kLanes = 32;  ///< of a warp

/// The number and size of thread blocks for `total_threads` threads. Blocks have equal size, in
/// whole warps of at most `max_threads` threads, so that few threads are idle.
struct BalancedBlocks {
  unsigned blocks, threads;

  BalancedBlocks(int64_t total_threads, int64_t max_threads)
      : blocks(count_blocks(total_threads, max_threads)),
        threads(count_blocks(total_threads, blocks * int64_t{kLanes}) * kLanes) {}
};

/// Sums over groups of `lanes` neighboring lanes, a power of two. Returns the sum of its group to
/// each lane. REQUIRES: all lanes of the warp call it.
__device__ __forceinline__ float sum_within_lane_groups(float value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

/// Sums over lanes with the same position in each group of `lanes` lanes, a power of two. Returns
/// the sum to each of them. REQUIRES: all lanes of the warp call it.
__device__ __forceinline__ float sum_across_lane_groups(float value, int lanes) {
  for (int mask = lanes; mask < kLanes; mask *= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

/// Returns the sum over the warp's lanes to all of them. REQUIRES: all lanes call it.
__device__ __forceinline__ float sum_over_warp(float value) {
  return sum_within_lane_groups(value, kLanes);
}

/// 128 random bits.
struct RandomBits {
  uint32_t words[4];

  /// Returns one of eight 16-bit numbers; `index` from 0.
  __device__ __forceinline__ uint32_t get_16_bits(int index) const {
    return words[index / 2] >> (index % 2 * 16) & 0xffffU;
  }
};

/// Returns the random bits for a key and a counter: Philox4x32-10 (Salmon et al. 2011, "Parallel
/// Random Numbers: As Easy as 1, 2, 3"), with the paper's constants.
__device__ __forceinline__ RandomBits philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplierA = 0xD2511F53, kMultiplierB = 0xCD9E8D57;
  constexpr uint32_t kWeylA = 0x9E3779B9, kWeylB = 0xBB67AE85;
  auto key_a = static_cast<uint32_t>(key), key_b = static_cast<uint32_t>(key >> 32);
  RandomBits x{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplierA * x.words[0], b = kMultiplierB * x.words[2];
    x = {{static_cast<uint32_t>(b >> 32) ^ x.words[1] ^ key_a, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ x.words[3] ^ key_b, static_cast<uint32_t>(a)}};
    key_a += kWeylA;
    key_b += kWeylB;
  }
  return x;
}

}  // namespace vlmtrain::kernels
