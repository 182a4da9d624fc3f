#pragma once

#include "kernels/cuda/elements.h"

namespace vlmtrain::kernels {

/// Neighbours that a thread has in fp32, whatever it reads or writes, when random numbers for eight are drawn at once.
constexpr int kNeighbours = 8;
struct Neighbours {
  float of[kNeighbours];
};

/// How many of them T reads or writes at a time.
template <class T>
constexpr int kNeighboursOfPack = kNeighbours < kPackElements<T> ? kNeighbours : kPackElements<T>;

/// `count` elements lie at `from`; of these the ones from the `first` on, and zeros behind the end. `packs`: these can
/// be read in packs.
template <class T>
__device__ __forceinline__ Neighbours read(const T* from, int64_t first, int64_t count, bool packs) {
  constexpr int kCount = kNeighboursOfPack<T>;
  Neighbours values;
  for (int start = 0; start < kNeighbours; start += kCount)
    read_in_fp32<kCount>(values.of + start, from, first + start, count, packs);
  return values;
}

template <class T>
__device__ __forceinline__ void write(T* to, const Neighbours& values, int64_t first, int64_t count, bool packs) {
  constexpr int kCount = kNeighboursOfPack<T>;
  for (int start = 0; start < kNeighbours; start += kCount)
    write_fp32<kCount>(to, values.of + start, first + start, count, packs);
}

}  // namespace vlmtrain::kernels
