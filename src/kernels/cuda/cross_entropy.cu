#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

// A thread block processes a row.
constexpr unsigned kThreadsPerBlock = 512;  // divides the threads per multiprocessor of every architecture
constexpr int kWarpsPerBlock = static_cast<int>(kThreadsPerBlock) / kLanes;

/// Σ exp(logit − max) over a set of logits, and their maximum; initially of the empty set.
struct ExpSum {
  float max = -INFINITY;
  float sum = 0;
};

/// Merges two sums relative to their common maximum (Milakov and Gimelshein 2018, arXiv
/// 1805.02867).
__device__ __forceinline__ ExpSum merge(const ExpSum& a, const ExpSum& b) {
  if (a.max == b.max) return {a.max, a.sum + b.sum};  // also for two empty sets, whose maxima are −∞
  const float max = a.max > b.max ? a.max : b.max;
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

/// Returns the merged sums of a warp's lanes to all of them. REQUIRES: all lanes call it.
__device__ __forceinline__ ExpSum sum_over_warp(ExpSum value) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    const ExpSum neighbor{__shfl_xor_sync(0xffffffffU, value.max, mask), __shfl_xor_sync(0xffffffffU, value.sum, mask)};
    value = merge(value, neighbor);
  }
  return value;
}

// Functions of a logit and their derivatives. A kernel of its own for each keeps the instructions
// without a cap free of branches.

struct NoSoftCap {
  __device__ __forceinline__ explicit NoSoftCap(const CrossEntropyArgs& /*args*/) {}
  __device__ __forceinline__ float value(float logit) const { return logit; }
  __device__ __forceinline__ float derivative(float /*logit*/) const { return 1; }
};

/// cap · tanh(logit / cap).
struct SoftCap {
  float cap, reciprocal;

  __device__ __forceinline__ explicit SoftCap(const CrossEntropyArgs& args)
      : cap(args.logit_soft_cap), reciprocal(1 / args.logit_soft_cap) {}
  __device__ __forceinline__ float value(float logit) const { return cap * tanhf(logit * reciprocal); }
  __device__ __forceinline__ float derivative(float logit) const {
    const float tanh = tanhf(logit * reciprocal);
    return 1 - tanh * tanh;
  }
};

template <class T, int kPackSize, class Cap>
__global__ void cross_entropy_kernel(const __grid_constant__ CrossEntropyArgs args) {
  VLMTRAIN_SHARED(float, max_by_warp, kWarpsPerBlock);
  VLMTRAIN_SHARED(float, sum_by_warp, kWarpsPerBlock);
  const int64_t row = blockIdx.x;
  T* const logits = static_cast<T*>(args.logits) + row * args.logits_stride;
  const int64_t label = args.labels[row];
  const Cap cap(args);
  const float label_logit = cap.value(to_float(logits[label]));

  ExpSum thread_sum;
  VLMTRAIN_UNROLL_4
  for (int64_t column = int64_t{threadIdx.x} * kPackSize; column < args.vocabulary;
       column += kThreadsPerBlock * kPackSize) {
    const auto packed = load<kPackSize>(logits + column);
    float values[kPackSize];
    // The last pack may reach beyond the vocabulary.
    for (int i = 0; i < kPackSize; ++i)
      values[i] = column + i < args.vocabulary ? cap.value(to_float(packed.values[i])) : -INFINITY;
    ExpSum pack;
    for (int i = 0; i < kPackSize; ++i) pack.max = fmaxf(pack.max, values[i]);
    const float shift = pack.max == -INFINITY ? 0 : pack.max;  // −∞ − (−∞) would be NaN; NaN stays NaN
    for (int i = 0; i < kPackSize; ++i) pack.sum += expf(values[i] - shift);
    thread_sum = merge(thread_sum, pack);
  }
  thread_sum = sum_over_warp(thread_sum);
  const int warp_index = static_cast<int>(threadIdx.x) / kLanes;
  if (threadIdx.x % kLanes == 0) {
    max_by_warp[warp_index] = thread_sum.max;
    sum_by_warp[warp_index] = thread_sum.sum;
  }
  __syncthreads();  // also: all threads have read the label's logit before any thread overwrites it
  ExpSum row_sum;
  for (int i = 0; i < kWarpsPerBlock; ++i) row_sum = merge(row_sum, {max_by_warp[i], sum_by_warp[i]});
  const float log_sum_exp = logf(row_sum.sum);  // the maximum is not added: it may be large, and digits would be lost
  if (threadIdx.x == 0) {
    args.cross_entropy[row] = row_sum.max - label_logit + log_sum_exp;
    args.is_correct[row] = label_logit == row_sum.max ? 1 : 0;
  }
  if (!args.compute_gradient) return;

  const float factor = args.factor * (args.row_factors != nullptr ? args.row_factors[row] : 1);
  for (int64_t column = int64_t{threadIdx.x} * kPackSize; column < args.vocabulary;
       column += kThreadsPerBlock * kPackSize) {
    auto pack = load<kPackSize>(logits + column);
    for (int i = 0; i < kPackSize; ++i) {
      const float logit = to_float(pack.values[i]);
      const float probability = expf(cap.value(logit) - row_sum.max - log_sum_exp);
      const float gradient = (probability - (column + i == label ? 1.0F : 0.0F)) * factor;
      pack.values[i] = from_float<T>(gradient * cap.derivative(logit));
    }
    store<kPackSize>(logits + column, pack);
  }
}

template <class T, int kPackSize>
int launch_kernel(const CrossEntropyArgs& args, void* stream) {
  const auto kernel = args.logit_soft_cap > 0 ? cross_entropy_kernel<T, kPackSize, SoftCap>
                                              : cross_entropy_kernel<T, kPackSize, NoSoftCap>;
  return launch(kernel, Dim3{static_cast<unsigned>(args.rows), 1, 1}, Dim3{kThreadsPerBlock, 1, 1}, stream, args);
}

}  // namespace

int cross_entropy(const CrossEntropyArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_load_packs<T>(args.logits_stride, static_cast<const T*>(args.logits))
               ? launch_kernel<T, kMaxPackSize<T>>(args, stream)
               : launch_kernel<T, 1>(args, stream);
  });
}

}  // namespace vlmtrain::kernels
