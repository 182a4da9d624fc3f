#pragma once

#include "kernels/cuda/device.h"
#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

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

/// Bytes that a thread reads or writes at a time if alignment allows.
constexpr int kPackBytes = 16;
template <class T>
constexpr int kPackElements = kPackBytes / static_cast<int>(sizeof(T));

/// kCount neighboring elements, which are read or written at once.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

template <int kCount, class T>
__device__ __forceinline__ Pack<T, kCount> load(const T* from) {
  return *aligned(reinterpret_cast<const Pack<T, kCount>*>(from));
}

template <int kCount, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, kCount>& pack) {
  store_vectorized(aligned(reinterpret_cast<Pack<T, kCount>*>(to)), pack);
}

/// Loads kCount of `count` elements from `first` on, as fp32; zeros beyond the end. `packs`: whole
/// packs can be read.
template <int kCount, class T>
__device__ __forceinline__ void load_fp32(float* to, const T* from, int64_t first, int64_t count, bool packs) {
  if (packs && first + kCount <= count) {
    const auto pack = load<kCount>(from + first);
    for (int i = 0; i < kCount; ++i) to[i] = to_float(pack.values[i]);
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = first + i < count ? to_float(from[first + i]) : 0;
  }
}

/// Stores kCount elements like load_fp32(); nothing beyond the end.
template <int kCount, class T>
__device__ __forceinline__ void store_fp32(T* to, const float* from, int64_t first, int64_t count, bool packs) {
  if (packs && first + kCount <= count) {
    Pack<T, kCount> pack;
    for (int i = 0; i < kCount; ++i) pack.values[i] = from_float<T>(from[i]);
    store<kCount>(to + first, pack);
  } else {
    for (int i = 0; i < kCount; ++i) {
      if (first + i < count) to[first + i] = from_float<T>(from[i]);
    }
  }
}

/// Returns whether rows of this many columns at these addresses can be accessed in packs of kCount.
template <class T, int kCount = kPackElements<T>, class... Pointee>
bool can_load_packs(int64_t columns, const Pointee*... pointers) {
  constexpr uintptr_t kBytes = sizeof(T) * kCount;
  return columns % kCount == 0 && ((reinterpret_cast<uintptr_t>(pointers) % kBytes == 0) && ...);
}

/// Calls `function` with a zero of the C++ type of `element`.
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

inline unsigned count_blocks(int64_t count, int64_t block_size) {
  return static_cast<unsigned>((count + block_size - 1) / block_size);
}

}  // namespace vlmtrain::kernels
