#pragma once

#include "kernels/cuda/elements.h"

namespace vlmtrain::kernels {

/// Neighbours that a thread has in fp32, whatever it reads or writes, when random numbers for eight are drawn at once.
constexpr int kNeighbors = 8;
struct Neighbors {
  float values[kNeighbors];
};

/// How many of them T reads or writes at a time.
template <class T>
constexpr int kNeighborsPerPack = kNeighbors < kPackElements<T> ? kNeighbors : kPackElements<T>;

/// `count` elements lie at `from`; of these the ones from the `first` on, and zeros behind the end. `packs`: these can
/// be read in packs.
template <class T>
__device__ __forceinline__ Neighbors load_neighbors(const T* from, int64_t first, int64_t count, bool packs) {
  constexpr int kCount = kNeighborsPerPack<T>;
  Neighbors neighbors;
  for (int offset = 0; offset < kNeighbors; offset += kCount)
    load_fp32<kCount>(neighbors.values + offset, from, first + offset, count, packs);
  return neighbors;
}

template <class T>
__device__ __forceinline__ void store_neighbors(T* to, const Neighbors& neighbors, int64_t first, int64_t count,
                                                bool packs) {
  constexpr int kCount = kNeighborsPerPack<T>;
  for (int offset = 0; offset < kNeighbors; offset += kCount)
    store_fp32<kCount>(to, neighbors.values + offset, first + offset, count, packs);
}

}  // namespace vlmtrain::kernels
