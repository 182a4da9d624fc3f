#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

// A block takes a row.
constexpr unsigned kThreads = 512;
constexpr int kWarps = static_cast<int>(kThreads) / kLanes;

/// Σ exp(logit − most) over some logits, none as yet.
struct Sum {
  float most = -INFINITY;
  float sum = 0;
};

/// Both sums over one largest logit (Milakov and Gimelshein 2018, arXiv 1805.02867).
__device__ __forceinline__ Sum joined(const Sum& a, const Sum& b) {
  if (a.most == b.most) return {a.most, a.sum + b.sum};  // −∞ of no logits, too
  const float most = a.most > b.most ? a.most : b.most;
  return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

__device__ __forceinline__ Sum sum_of_warp(Sum value) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    const Sum other{__shfl_xor_sync(0xffffffffU, value.most, mask), __shfl_xor_sync(0xffffffffU, value.sum, mask)};
    value = joined(value, other);
  }
  return value;
}

template <class T, int kCount>
__global__ void cross_entropy_kernel(const __grid_constant__ CrossEntropy call) {
  VLMTRAIN_SHARED(float, most_of_warp, kWarps);
  VLMTRAIN_SHARED(float, sum_by_warp, kWarps);
  const int64_t row = blockIdx.x;
  T* const logits = static_cast<T*>(call.logits) + row * call.vocabulary;
  const int64_t label = call.labels[row];
  const float logit = to_float(logits[label]);

  Sum own;
  VLMTRAIN_TOGETHER_BY_FOUR
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < call.vocabulary; column += kThreads * kCount) {
    const auto read = load<kCount>(logits + column);
    Sum pack;
    for (int i = 0; i < kCount; ++i) pack.most = fmaxf(pack.most, to_float(read.values[i]));
    const float from = pack.most == -INFINITY ? 0 : pack.most;  // what is not a number stays none
    for (int i = 0; i < kCount; ++i) pack.sum += expf(to_float(read.values[i]) - from);
    own = joined(own, pack);
  }
  own = sum_of_warp(own);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  if (threadIdx.x % kLanes == 0) {
    most_of_warp[warp] = own.most;
    sum_by_warp[warp] = own.sum;
  }
  __syncthreads();  // also: everyone has read the label's logit before anyone writes
  Sum all;
  for (int i = 0; i < kWarps; ++i) all = joined(all, {most_of_warp[i], sum_by_warp[i]});
  const float log_sum = logf(all.sum);  // over the largest, which is not added: it may be large
  if (threadIdx.x == 0) {
    call.cross_entropy[row] = all.most - logit + log_sum;
    call.is_right[row] = logit == all.most ? 1 : 0;
  }
  if (!call.gradient_wanted) return;

  const float factor = call.factor * (call.row_factors != nullptr ? call.row_factors[row] : 1);
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < call.vocabulary; column += kThreads * kCount) {
    auto pack = load<kCount>(logits + column);
    for (int i = 0; i < kCount; ++i) {
      const float probability = expf(to_float(pack.values[i]) - all.most - log_sum);
      pack.values[i] = from_float<T>((probability - (column + i == label ? 1.0F : 0.0F)) * factor);
    }
    store<kCount>(logits + column, pack);
  }
}

template <class T, int kCount>
int start(const CrossEntropy& call, void* stream) {
  return launch(cross_entropy_kernel<T, kCount>, Size{static_cast<unsigned>(call.rows), 1, 1}, Size{kThreads, 1, 1},
                stream, call);
}

}  // namespace

int cross_entropy(const CrossEntropy& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    return in_packs<T>(call.vocabulary, static_cast<const T*>(call.logits)) ? start<T, kPackElements<T>>(call, stream)
                                                                            : start<T, 1>(call, stream);
  });
}

}  // namespace vlmtrain::kernels
