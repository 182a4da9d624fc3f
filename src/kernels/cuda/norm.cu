#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels {

namespace {

// A thread block processes a row, with no more warps than there are packs to read.
constexpr int kMaxWarpsPerBlock = 16;  // 512 threads, a divisor of the threads per multiprocessor
/// Maximum number of packs that a thread holds in registers. All reads are then in flight at once,
/// and each value is read once. Wider rows are read again from the cache for each sum. Not tuned.
constexpr int kMaxPacksInRegisters = 4;

/// Returns the sum over the block's threads to all of them. REQUIRES: all threads of the block call
/// it.
__device__ __forceinline__ float sum_over_block(float value) {
  VLMTRAIN_SHARED(float, by_warp, kMaxWarpsPerBlock);
  value = sum_over_warp(value);
  if (blockDim.x == kLanes) return value;
  __syncthreads();  // all threads have read the previous sum
  if (threadIdx.x % kLanes == 0) by_warp[threadIdx.x / kLanes] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kLanes; ++warp) sum += by_warp[warp];
  return sum;
}

/// Loads a pack; returns zeros for a null pointer.
template <int kPackSize, class T>
__device__ __forceinline__ Pack<T, kPackSize> load_or_zero(const T* from, int64_t index) {
  return from != nullptr ? load<kPackSize>(from + index) : Pack<T, kPackSize>{};
}

/// A thread's packs of a row of x. If kNumPacks > 0, the thread has at most kNumPacks, which it
/// holds in registers. If 0, it has any number and reads them from memory on each use.
template <class T, int kPackSize, int kNumPacks>
class ThreadRow {
 public:
  __device__ __forceinline__ ThreadRow(const T* x, int64_t features)
      : x_(x), features_(features), first_(int64_t{threadIdx.x} * kPackSize), stride_(int64_t{blockDim.x} * kPackSize) {
    for (int i = 0; i < kNumPacks; ++i) {
      if (first_ + i * stride_ < features) packs_[i] = load<kPackSize>(x + first_ + i * stride_);
    }
  }

  /// Calls function(column, pack) for each pack.
  template <class Function>
  __device__ __forceinline__ void for_each_pack(Function function) const {
    if constexpr (kNumPacks > 0) {
      for (int i = 0; i < kNumPacks; ++i) {
        if (first_ + i * stride_ < features_) function(first_ + i * stride_, packs_[i]);
      }
    } else {
      for (int64_t column = first_; column < features_; column += stride_)
        function(column, load<kPackSize>(x_ + column));
    }
  }

 private:
  const T* x_;
  int64_t features_, first_, stride_;
  Pack<T, kPackSize> packs_[kNumPacks > 0 ? kNumPacks : 1];
};

/// Computes the mean and then the variance from centered values, in two passes for accuracy.
template <class T, int kPackSize, int kNumPacks>
__global__ void forward_kernel(const __grid_constant__ NormForwardArgs args) {
  const int64_t row = blockIdx.x;
  const ThreadRow<T, kPackSize, kNumPacks> x(static_cast<const T*>(args.x) + row * args.x_stride, args.features);
  const auto features = static_cast<float>(args.features);
  float mean = 0, sum = 0;
  if (args.is_centered) {
    x.for_each_pack([&](int64_t, const Pack<T, kPackSize>& pack) {
      for (int i = 0; i < kPackSize; ++i) sum += to_float(pack.values[i]);
    });
    mean = sum_over_block(sum) / features;
    sum = 0;
  }
  x.for_each_pack([&](int64_t, const Pack<T, kPackSize>& pack) {
    for (int i = 0; i < kPackSize; ++i) {
      const float deviation = to_float(pack.values[i]) - mean;
      sum += deviation * deviation;
    }
  });
  const float rstd = rsqrtf(sum_over_block(sum) / features + args.eps);
  if (threadIdx.x == 0) {
    args.rstd[row] = rstd;
    if (args.is_centered) args.mean[row] = mean;
  }

  const T *const weight = static_cast<const T*>(args.weight), *const bias = static_cast<const T*>(args.bias);
  const T* residual = static_cast<const T*>(args.residual);
  if (residual != nullptr) residual += row * args.residual_stride;
  T* const value = static_cast<T*>(args.value) + row * args.value_stride;
  const float weight_offset = args.gain == NormGain::kOnePlusWeight ? 1 : 0;
  x.for_each_pack([&](int64_t column, Pack<T, kPackSize> pack) {
    const auto weight_pack = load<kPackSize>(weight + column);
    const auto bias_pack = load_or_zero<kPackSize>(bias, column),
               residual_pack = load_or_zero<kPackSize>(residual, column);
    for (int i = 0; i < kPackSize; ++i) {
      const float xhat = (to_float(pack.values[i]) - mean) * rstd;
      pack.values[i] = from_float<T>(xhat * (to_float(weight_pack.values[i]) + weight_offset) +
                                     to_float(bias_pack.values[i]) + to_float(residual_pack.values[i]));
    }
    store<kPackSize>(value + column, pack);
  });
}

/// Computes, for x̂ = (x − mean) r, the gradient g and the gain w, dx = r (g w − mean(g w) − x̂
/// mean(g w x̂)). The term mean(g w) exists only if the norm is centered.
template <class T, int kPackSize>
__global__ void backward_kernel(const __grid_constant__ NormBackwardArgs args) {
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * kPackSize, stride = int64_t{blockDim.x} * kPackSize;
  const T* const x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* const gradient = static_cast<const T*>(args.gradient) + row * args.gradient_stride;
  const T* const weight = static_cast<const T*>(args.weight);
  const auto features = static_cast<float>(args.features);
  const float mean = args.is_centered ? args.mean[row] : 0, rstd = args.rstd[row];
  const float weight_offset = args.gain == NormGain::kOnePlusWeight ? 1 : 0;
  float sum = 0, sum_dy_xhat = 0;
  for (int64_t column = first; column < args.features; column += stride) {
    const auto packed = load<kPackSize>(x + column), dy = load<kPackSize>(gradient + column),
               weight_pack = load<kPackSize>(weight + column);
    for (int i = 0; i < kPackSize; ++i) {
      const float scaled_dy = to_float(dy.values[i]) * (to_float(weight_pack.values[i]) + weight_offset);
      sum += scaled_dy;
      sum_dy_xhat += scaled_dy * (to_float(packed.values[i]) - mean) * rstd;
    }
  }
  const float mean_scaled_dy = args.is_centered ? sum_over_block(sum) / features : 0;
  const float mean_dy_xhat = sum_over_block(sum_dy_xhat) / features;

  const T* residual_gradient = static_cast<const T*>(args.residual_gradient);
  if (residual_gradient != nullptr) residual_gradient += row * args.residual_gradient_stride;
  T* const dx = static_cast<T*>(args.dx) + row * args.dx_stride;
  for (int64_t column = first; column < args.features; column += stride) {
    auto pack = load<kPackSize>(x + column);
    const auto dy = load<kPackSize>(gradient + column), weight_pack = load<kPackSize>(weight + column);
    const auto residual_pack = load_or_zero<kPackSize>(residual_gradient, column);
    for (int i = 0; i < kPackSize; ++i) {
      const float scaled_dy = to_float(dy.values[i]) * (to_float(weight_pack.values[i]) + weight_offset);
      const float xhat = (to_float(pack.values[i]) - mean) * rstd;
      pack.values[i] =
          from_float<T>(rstd * (scaled_dy - mean_scaled_dy - xhat * mean_dy_xhat) + to_float(residual_pack.values[i]));
    }
    store<kPackSize>(dx + column, pack);
  }
}

/// Returns ⌈features / count⌉.
int64_t count_packs(int64_t features, int count) {
  return (features + count - 1) / count;
}

template <class Args>
int launch_kernel(void (*kernel)(Args), const Args& args, int64_t packs, int packs_per_thread, int max_warps,
                  void* stream) {
  const int64_t warps = count_packs(packs, packs_per_thread * kLanes);
  const auto threads = static_cast<unsigned>((warps < max_warps ? warps : max_warps) * kLanes);
  return launch(kernel, Dim3{static_cast<unsigned>(args.rows), 1, 1}, Dim3{threads, 1, 1}, stream, args);
}

template <class T, int kPackSize>
int launch_forward(const NormForwardArgs& args, void* stream) {
  const int64_t packs = count_packs(args.features, kPackSize);
  if (packs <= int64_t{kLanes})
    return launch_kernel(forward_kernel<T, kPackSize, 1>, args, packs, 1, kMaxWarpsPerBlock, stream);
  if (packs <= int64_t{kMaxWarpsPerBlock} * kLanes * kMaxPacksInRegisters)
    return launch_kernel(forward_kernel<T, kPackSize, kMaxPacksInRegisters>, args, packs, kMaxPacksInRegisters,
                         kMaxWarpsPerBlock, stream);
  return launch_kernel(forward_kernel<T, kPackSize, 0>, args, packs, 1, kMaxWarpsPerBlock, stream);
}

template <class T, int kPackSize>
int launch_backward(const NormBackwardArgs& args, void* stream) {
  constexpr int kMaxBackwardWarps = 4;  // not tuned by a recorded benchmark
  return launch_kernel(backward_kernel<T, kPackSize>, args, count_packs(args.features, kPackSize), 1, kMaxBackwardWarps,
                       stream);
}

/// Returns whether all rows of a norm can be read and written in packs of the largest size.
template <class T>
bool can_use_packs(const NormForwardArgs& args) {
  return can_load_packs<T>(args.features, args.x, args.weight, args.bias, args.residual, args.value) &&
         have_pack_strides<kMaxPackSize<T>>(args.x_stride, args.residual_stride, args.value_stride);
}

template <class T>
bool can_use_packs(const NormBackwardArgs& args) {
  return can_load_packs<T>(args.features, args.gradient, args.x, args.weight, args.residual_gradient, args.dx) &&
         have_pack_strides<kMaxPackSize<T>>(args.gradient_stride, args.x_stride, args.residual_gradient_stride,
                                            args.dx_stride);
}

}  // namespace

int norm_forward(const NormForwardArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_use_packs<T>(args) ? launch_forward<T, kMaxPackSize<T>>(args, stream)
                                  : launch_forward<T, 1>(args, stream);
  });
}

int norm_backward(const NormBackwardArgs& args, void* stream) {
  return dispatch_element_type(args.element, [&](auto zero) {
    using T = decltype(zero);
    return can_use_packs<T>(args) ? launch_backward<T, kMaxPackSize<T>>(args, stream)
                                  : launch_backward<T, 1>(args, stream);
  });
}

}  // namespace vlmtrain::kernels
