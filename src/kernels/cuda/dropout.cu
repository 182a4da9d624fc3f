#include "kernels/cuda/kernels.h"
#include "kernels/cuda/neighbours.h"
#include "kernels/cuda/philox.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreads = 128;

/// Of a row.
__device__ __forceinline__ const DropoutStream& stream_of(const DropoutMask& mask, int64_t row) {
  int first = 0;
  for (int end = mask.streams; end - first > 1;) {
    const int middle = (first + end) / 2;
    if (mask.stream[middle].first_row <= row) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return mask.stream[first];
}

/// Which of eight neighbours a reader keeps, a bit each. 16 random bits decide for nearly all, so that eight take one
/// Philox: 32 for each would take longer than to read and write them. The rare one whose bits are those of the bound
/// gets 16 more, so that the probability is exact to 2⁻³².
struct Kept {
  uint32_t bits = 0;

  __device__ __forceinline__ Kept(const DropoutMask& mask, const DropoutStream& stream, int64_t row, int64_t column,
                                  int reader) {
    const uint64_t counter = static_cast<uint64_t>(reader) << 32 | static_cast<uint64_t>(column / kNeighbours);
    const auto row_of_stream = static_cast<uint64_t>(row - stream.first_row);
    const RandomBits upper = philox(stream.key, counter, row_of_stream);
    uint32_t undecided = 0;
    for (int i = 0; i < kNeighbours; ++i) {
      bits |= (upper.half(i) < mask.keeps_below[0] ? 1U : 0U) << i;
      undecided |= (upper.half(i) == mask.keeps_below[0] ? 1U : 0U) << i;
    }
    if (undecided == 0) return;
    constexpr uint64_t kLower = uint64_t{1} << 63;
    const RandomBits lower = philox(stream.key, kLower | counter, row_of_stream);
    for (int i = 0; i < kNeighbours; ++i) {
      bits |= undecided & (lower.half(i) < mask.keeps_below[1] ? 1U : 0U) << i;
    }
  }

  __device__ __forceinline__ bool has(int i) const { return (bits >> i & 1U) != 0; }
};

/// A block takes the columns that it can of one row: blockIdx.x is the row.
struct Place {
  int64_t row, column;
};
__device__ __forceinline__ Place place_of(const DropoutMask& mask) {
  return {mask.first_row + blockIdx.x, (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kNeighbours};
}

template <class T>
__global__ void dropout_kernel(const __grid_constant__ Dropout call, bool packs) {
  const DropoutMask& mask = call.mask;
  const auto [row, column] = place_of(mask);
  if (column >= mask.columns) return;
  const DropoutStream& stream = stream_of(mask, row);
  const Neighbours x = read(static_cast<const T*>(call.x) + row * mask.columns, column, mask.columns, packs);
  T* to = static_cast<T*>(call.dropped) + row * mask.columns;
  for (int reader = 0; reader < mask.readers; ++reader, to += mask.reader_stride) {
    const Kept kept(mask, stream, row, column, reader);
    Neighbours dropped;
    for (int i = 0; i < kNeighbours; ++i) dropped.of[i] = kept.has(i) ? x.of[i] * mask.scale : 0;
    write(to, dropped, column, mask.columns, packs);
  }
}

template <class T>
__global__ void backward_kernel(const __grid_constant__ DropoutBackward call, bool packs) {
  const DropoutMask& mask = call.mask;
  const auto [row, column] = place_of(mask);
  if (column >= mask.columns) return;
  const DropoutStream& stream = stream_of(mask, row);
  T* const to = static_cast<T*>(call.sum) + row * mask.columns;
  const T* from = static_cast<const T*>(call.x) + row * mask.columns;
  Neighbours sum = read(to, column, mask.columns, packs);
  for (int reader = 0; reader < mask.readers; ++reader, from += mask.reader_stride) {
    const Kept kept(mask, stream, row, column, reader);
    const Neighbours x = read(from, column, mask.columns, packs);
    for (int i = 0; i < kNeighbours; ++i) sum.of[i] += kept.has(i) ? x.of[i] * mask.scale : 0;
  }
  write(to, sum, column, mask.columns, packs);
}

template <class T, class Call>
int start(void (*kernel)(Call, bool), const Call& call, const void* x, const void* result, void* stream) {
  const int64_t threads = (call.mask.columns + kNeighbours - 1) / kNeighbours;
  const Size grid{static_cast<unsigned>(call.mask.rows), blocks_for(threads, kThreads), 1};
  const bool packs = in_packs<T>(call.mask.columns, static_cast<const T*>(x), static_cast<const T*>(result));
  return launch(kernel, grid, Size{kThreads, 1, 1}, stream, call, packs);
}

}  // namespace

int dropout(const Dropout& call, void* stream) {
  return with_element(call.mask.element, [&](auto zero) {
    using T = decltype(zero);
    return start<T>(dropout_kernel<T>, call, call.x, call.dropped, stream);
  });
}

int dropout_backward(const DropoutBackward& call, void* stream) {
  return with_element(call.mask.element, [&](auto zero) {
    using T = decltype(zero);
    return start<T>(backward_kernel<T>, call, call.x, call.sum, stream);
  });
}

}  // namespace vlmtrain::kernels
