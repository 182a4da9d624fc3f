#pragma once

#include "kernels/cuda/elements.h"

namespace vlmtrain::kernels {

/// Neighbours that a thread has in fp32, whatever it reads or writes, when random numbers for eight are drawn at once.
constexpr int kNeighbours = 8;
struct Neighbours {
  float of[kNeighbours];
};

/// `count` elements lie at `from`; of these the ones from the `first` on, and zeros behind the end. `packs`: these can
/// be read in packs.
template <class T>
__device__ __forceinline__ Neighbours read(const T* from, int64_t first, int64_t count, bool packs) {
  Neighbours values;
  if (packs && first + kNeighbours <= count) {
    constexpr int kCount = kNeighbours < kPackElements<T> ? kNeighbours : kPackElements<T>;
    for (int start = 0; start < kNeighbours; start += kCount) {
      const auto pack = load<kCount>(from + first + start);
      for (int i = 0; i < kCount; ++i) values.of[start + i] = to_float(pack.values[i]);
    }
    return values;
  }
  for (int i = 0; i < kNeighbours; ++i) values.of[i] = first + i < count ? to_float(from[first + i]) : 0;
  return values;
}

template <class T>
__device__ __forceinline__ void write(T* to, const Neighbours& values, int64_t first, int64_t count, bool packs) {
  if (packs && first + kNeighbours <= count) {
    constexpr int kCount = kNeighbours < kPackElements<T> ? kNeighbours : kPackElements<T>;
    for (int start = 0; start < kNeighbours; start += kCount) {
      Pack<T, kCount> pack;
      for (int i = 0; i < kCount; ++i) pack.values[i] = from_float<T>(values.of[start + i]);
      store<kCount>(to + first + start, pack);
    }
    return;
  }
  for (int i = 0; i < kNeighbours; ++i) {
    if (first + i < count) to[first + i] = from_float<T>(values.of[i]);
  }
}

}  // namespace vlmtrain::kernels
