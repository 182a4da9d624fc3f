#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

constexpr unsigned kThreadsPerBlock = 128;  // divides the threads per multiprocessor of every architecture

/// Neighboring elements per thread: one call of Philox has 16 random bits for each of them.
constexpr int kElementsPerGroup = 8;
/// A thread's elements in fp32.
struct ElementGroup {
  float values[kElementsPerGroup];
};

/// The number of neighbors that are read or written at a time.
template <class T>
constexpr int kGroupElementsPerPack = kElementsPerGroup < kMaxPackSize<T> ? kElementsPerGroup : kMaxPackSize<T>;

/// Loads elements [first, first + kElementsPerGroup) of the `count` elements at `from`; zeros
/// beyond the end. `use_packs` as in load_as_fp32().
template <class T>
__device__ __forceinline__ ElementGroup load_group(const T* from, int64_t first, int64_t count, bool use_packs) {
  constexpr int kPackSize = kGroupElementsPerPack<T>;
  ElementGroup group;
  for (int offset = 0; offset < kElementsPerGroup; offset += kPackSize)
    load_as_fp32<kPackSize>(group.values + offset, from, first + offset, count, use_packs);
  return group;
}

/// Stores elements like load_group(); nothing beyond the end.
template <class T>
__device__ __forceinline__ void store_group(T* to, const ElementGroup& group, int64_t first, int64_t count,
                                            bool use_packs) {
  constexpr int kPackSize = kGroupElementsPerPack<T>;
  for (int offset = 0; offset < kElementsPerGroup; offset += kPackSize)
    store_from_fp32<kPackSize>(to, group.values + offset, first + offset, count, use_packs);
}

/// Returns the stream of a row, by binary search.
__device__ __forceinline__ const DropoutStream& find_row_stream(const DropoutMask& mask, int64_t row) {
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

/// The mask of eight neighbors for a consumer, one bit each. 16 random bits decide for almost all
/// elements, so that one call of Philox suffices for eight; 32 bits each would take longer than the
/// memory accesses. An element whose bits equal the threshold gets 16 more, so that the probability
/// is exact to 2⁻³².
struct KeepMask {
  uint32_t bits = 0;

  __device__ __forceinline__ KeepMask(const DropoutMask& mask, const DropoutStream& stream, int64_t row, int64_t column,
                                      int consumer) {
    const uint64_t counter = static_cast<uint64_t>(consumer) << 32 | static_cast<uint64_t>(column / kElementsPerGroup);
    const auto stream_row = static_cast<uint64_t>(row - stream.first_row);
    const RandomBits upper_bits = philox(stream.key, counter, stream_row);
    uint32_t undecided_bits = 0;
    for (int i = 0; i < kElementsPerGroup; ++i) {
      bits |= (upper_bits.get_16_bits(i) < mask.keep_thresholds[0] ? 1U : 0U) << i;
      undecided_bits |= (upper_bits.get_16_bits(i) == mask.keep_thresholds[0] ? 1U : 0U) << i;
    }
    if (undecided_bits == 0) return;
    // Distinguishes the counter from that of the upper bits; consumers are numbered below 2³¹.
    constexpr uint64_t kLowerBitsFlag = uint64_t{1} << 63;
    const RandomBits lower_bits = philox(stream.key, kLowerBitsFlag | counter, stream_row);
    for (int i = 0; i < kElementsPerGroup; ++i) {
      bits |= undecided_bits & (lower_bits.get_16_bits(i) < mask.keep_thresholds[1] ? 1U : 0U) << i;
    }
  }

  __device__ __forceinline__ bool is_kept(int i) const { return (bits >> i & 1U) != 0; }
};

/// The first element of a thread. blockIdx.x is the row in the launch, blockIdx.y a range of its
/// columns.
struct ElementPosition {
  int64_t row, column;
};
__device__ __forceinline__ ElementPosition get_thread_position(const DropoutMask& mask) {
  return {mask.first_row + blockIdx.x, (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kElementsPerGroup};
}

template <class T>
__global__ void dropout_kernel(const __grid_constant__ DropoutArgs args, bool use_packs) {
  const DropoutMask& mask = args.mask;
  const auto [row, column] = get_thread_position(mask);
  if (column >= mask.columns) return;
  const DropoutStream& stream = find_row_stream(mask, row);
  const ElementGroup x =
      load_group(static_cast<const T*>(args.x) + row * mask.columns, column, mask.columns, use_packs);
  T* to = static_cast<T*>(args.dropped) + row * mask.columns;
  for (int consumer = 0; consumer < mask.num_consumers; ++consumer, to += mask.consumer_stride) {
    const KeepMask keep_mask(mask, stream, row, column, consumer);
    ElementGroup dropped;
    for (int i = 0; i < kElementsPerGroup; ++i) dropped.values[i] = keep_mask.is_kept(i) ? x.values[i] * mask.scale : 0;
    store_group(to, dropped, column, mask.columns, use_packs);
  }
}

template <class T>
__global__ void backward_kernel(const __grid_constant__ DropoutBackwardArgs args, bool use_packs) {
  const DropoutMask& mask = args.mask;
  const auto [row, column] = get_thread_position(mask);
  if (column >= mask.columns) return;
  const DropoutStream& stream = find_row_stream(mask, row);
  T* const to = static_cast<T*>(args.sum) + row * mask.columns;
  const T* from = static_cast<const T*>(args.x) + row * mask.columns;
  ElementGroup sum = load_group(to, column, mask.columns, use_packs);
  for (int consumer = 0; consumer < mask.num_consumers; ++consumer, from += mask.consumer_stride) {
    const KeepMask keep_mask(mask, stream, row, column, consumer);
    const ElementGroup x = load_group(from, column, mask.columns, use_packs);
    for (int i = 0; i < kElementsPerGroup; ++i) sum.values[i] += keep_mask.is_kept(i) ? x.values[i] * mask.scale : 0;
  }
  store_group(to, sum, column, mask.columns, use_packs);
}

template <class T, class Args>
int launch_kernel(void (*kernel)(Args, bool), const Args& args, const void* x, const void* result, void* stream) {
  const int64_t threads = (args.mask.columns + kElementsPerGroup - 1) / kElementsPerGroup;
  const Dim3 grid{static_cast<unsigned>(args.mask.rows), count_blocks(threads, kThreadsPerBlock), 1};
  const bool use_packs = can_load_packs<T>(args.mask.columns, static_cast<const T*>(x), static_cast<const T*>(result));
  return launch(kernel, grid, Dim3{kThreadsPerBlock, 1, 1}, stream, args, use_packs);
}

}  // namespace

int dropout(const DropoutArgs& args, void* stream) {
  return dispatch_element_type(args.mask.element, [&](auto zero) {
    using T = decltype(zero);
    return launch_kernel<T>(dropout_kernel<T>, args, args.x, args.dropped, stream);
  });
}

int dropout_backward(const DropoutBackwardArgs& args, void* stream) {
  return dispatch_element_type(args.mask.element, [&](auto zero) {
    using T = decltype(zero);
    return launch_kernel<T>(backward_kernel<T>, args, args.x, args.sum, stream);
  });
}

}  // namespace vlmtrain::kernels
