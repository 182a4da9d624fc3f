#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/warp.h"

namespace vlmtrain::kernels {

namespace {

// A block takes a row, with no more warps than there is to read.
constexpr int kMostWarps = 16;
/// Of a thread, which fill a row's registers: all are on their way at once, and are read once. Wider rows are read
/// again, from the cache, for each sum.
constexpr int kKeptPacks = 4;

/// The sum over a block's threads, in all of them. All threads come here.
__device__ __forceinline__ float sum_of_block(float value) {
  VLMTRAIN_SHARED(float, by_warp, kMostWarps);
  value = sum_of_warp(value);
  if (blockDim.x == kLanes) return value;
  __syncthreads();  // what was summed before has been read
  if (threadIdx.x % kLanes == 0) by_warp[threadIdx.x / kLanes] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kLanes; ++warp) sum += by_warp[warp];
  return sum;
}

/// Packs of zeros where there is nothing to read.
template <int kCount, class T>
__device__ __forceinline__ Pack<T, kCount> load_or_zero(const T* from, int64_t place) {
  return from != nullptr ? load<kCount>(from + place) : Pack<T, kCount>{};
}

/// A row's packs that are a thread's: kKept at most, or, with 0, any number.
template <class T, int kCount, int kKept>
class Row {
 public:
  __device__ __forceinline__ Row(const T* x, int64_t features)
      : x_(x), features_(features), first_(int64_t{threadIdx.x} * kCount), stride_(int64_t{blockDim.x} * kCount) {
    for (int i = 0; i < kKept; ++i) {
      if (first_ + i * stride_ < features) kept_[i] = load<kCount>(x + first_ + i * stride_);
    }
  }

  /// function(column, its pack)
  template <class Function>
  __device__ __forceinline__ void for_each(Function function) const {
    if constexpr (kKept > 0) {
      for (int i = 0; i < kKept; ++i) {
        if (first_ + i * stride_ < features_) function(first_ + i * stride_, kept_[i]);
      }
    } else {
      for (int64_t column = first_; column < features_; column += stride_) function(column, load<kCount>(x_ + column));
    }
  }

 private:
  const T* x_;
  int64_t features_, first_, stride_;
  Pack<T, kCount> kept_[kKept > 0 ? kKept : 1];
};

template <class T, int kCount, int kKept>
__global__ void forward_kernel(const __grid_constant__ NormForward call) {
  const int64_t row = blockIdx.x;
  const Row<T, kCount, kKept> x(static_cast<const T*>(call.x) + row * call.features, call.features);
  const auto features = static_cast<float>(call.features);
  float mean = 0, sum = 0;
  if (call.is_centered) {
    x.for_each([&](int64_t, const Pack<T, kCount>& pack) {
      for (int i = 0; i < kCount; ++i) sum += to_float(pack.values[i]);
    });
    mean = sum_of_block(sum) / features;
    sum = 0;
  }
  x.for_each([&](int64_t, const Pack<T, kCount>& pack) {
    for (int i = 0; i < kCount; ++i) {
      const float centered = to_float(pack.values[i]) - mean;
      sum += centered * centered;
    }
  });
  const float reciprocal = rsqrtf(sum_of_block(sum) / features + call.eps);
  if (threadIdx.x == 0) {
    call.reciprocal[row] = reciprocal;
    if (call.is_centered) call.mean[row] = mean;
  }

  const T *const weight = static_cast<const T*>(call.weight), *const bias = static_cast<const T*>(call.bias);
  const T* residual = static_cast<const T*>(call.residual);
  if (residual != nullptr) residual += row * call.features;
  T* const value = static_cast<T*>(call.value) + row * call.features;
  const float added = call.gain == Gain::kOnePlusWeight ? 1 : 0;
  x.for_each([&](int64_t column, Pack<T, kCount> pack) {
    const auto gain = load<kCount>(weight + column);
    const auto offset = load_or_zero<kCount>(bias, column), other = load_or_zero<kCount>(residual, column);
    for (int i = 0; i < kCount; ++i) {
      const float normed = (to_float(pack.values[i]) - mean) * reciprocal;
      pack.values[i] = from_float<T>(normed * (to_float(gain.values[i]) + added) + to_float(offset.values[i]) +
                                     to_float(other.values[i]));
    }
    store<kCount>(value + column, pack);
  });
}

/// With x̂ = (x − mean) r, g the gradient and w the gain: dx = r (g w − mean(g w) − x̂ mean(g w x̂)), of which mean(g w)
/// comes from centering.
template <class T, int kCount>
__global__ void backward_kernel(const __grid_constant__ NormBackward call) {
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * kCount, stride = int64_t{blockDim.x} * kCount;
  const T* const x = static_cast<const T*>(call.x) + row * call.features;
  const T* const gradient = static_cast<const T*>(call.gradient) + row * call.features;
  const T* const weight = static_cast<const T*>(call.weight);
  const auto features = static_cast<float>(call.features);
  const float mean = call.is_centered ? call.mean[row] : 0, reciprocal = call.reciprocal[row];
  const float added = call.gain == Gain::kOnePlusWeight ? 1 : 0;
  float sum = 0, sum_with_x = 0;
  for (int64_t column = first; column < call.features; column += stride) {
    const auto from = load<kCount>(x + column), of_value = load<kCount>(gradient + column),
               gain = load<kCount>(weight + column);
    for (int i = 0; i < kCount; ++i) {
      const float gained = to_float(of_value.values[i]) * (to_float(gain.values[i]) + added);
      sum += gained;
      sum_with_x += gained * (to_float(from.values[i]) - mean) * reciprocal;
    }
  }
  const float mean_gained = call.is_centered ? sum_of_block(sum) / features : 0;
  const float mean_with_x = sum_of_block(sum_with_x) / features;

  const T* passing = static_cast<const T*>(call.passing);
  if (passing != nullptr) passing += row * call.features;
  T* const of_x = static_cast<T*>(call.of_x) + row * call.features;
  for (int64_t column = first; column < call.features; column += stride) {
    auto pack = load<kCount>(x + column);
    const auto of_value = load<kCount>(gradient + column), gain = load<kCount>(weight + column);
    const auto other = load_or_zero<kCount>(passing, column);
    for (int i = 0; i < kCount; ++i) {
      const float gained = to_float(of_value.values[i]) * (to_float(gain.values[i]) + added);
      const float normed = (to_float(pack.values[i]) - mean) * reciprocal;
      pack.values[i] =
          from_float<T>(reciprocal * (gained - mean_gained - normed * mean_with_x) + to_float(other.values[i]));
    }
    store<kCount>(of_x + column, pack);
  }
}

int64_t packs_of(int64_t features, int count) {
  return (features + count - 1) / count;
}

template <class Call>
int start(void (*kernel)(Call), const Call& call, int64_t packs, int packs_of_thread, int most_warps, void* stream) {
  const int64_t warps = packs_of(packs, packs_of_thread * kLanes);
  const auto threads = static_cast<unsigned>((warps < most_warps ? warps : most_warps) * kLanes);
  return launch(kernel, Size{static_cast<unsigned>(call.rows), 1, 1}, Size{threads, 1, 1}, stream, call);
}

template <class T, int kCount>
int start_forward(const NormForward& call, void* stream) {
  const int64_t packs = packs_of(call.features, kCount);
  if (packs <= int64_t{kLanes}) return start(forward_kernel<T, kCount, 1>, call, packs, 1, kMostWarps, stream);
  if (packs <= int64_t{kMostWarps} * kLanes * kKeptPacks)
    return start(forward_kernel<T, kCount, kKeptPacks>, call, packs, kKeptPacks, kMostWarps, stream);
  return start(forward_kernel<T, kCount, 0>, call, packs, 1, kMostWarps, stream);
}

template <class T, int kCount>
int start_backward(const NormBackward& call, void* stream) {
  constexpr int kWarpsOfWideRows = 4;
  return start(backward_kernel<T, kCount>, call, packs_of(call.features, kCount), 1, kWarpsOfWideRows, stream);
}

template <class T, class... Places>
bool are_in_packs(int64_t features, const Places*... places) {
  return in_packs<T>(features, static_cast<const T*>(places)...);
}

}  // namespace

int norm_forward(const NormForward& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    return are_in_packs<T>(call.features, call.x, call.weight, call.bias, call.residual, call.value)
               ? start_forward<T, kPackElements<T>>(call, stream)
               : start_forward<T, 1>(call, stream);
  });
}

int norm_backward(const NormBackward& call, void* stream) {
  return with_element(call.element, [&](auto zero) {
    using T = decltype(zero);
    return are_in_packs<T>(call.features, call.gradient, call.x, call.weight, call.passing, call.of_x)
               ? start_backward<T, kPackElements<T>>(call, stream)
               : start_backward<T, 1>(call, stream);
  });
}

}  // namespace vlmtrain::kernels
