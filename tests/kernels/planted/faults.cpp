#include "kernels/planted/faults.h"

#define VLMTRAIN_EMULATED
#include "kernels/cuda/primitives.h"

namespace vlmtrain::kernels::planted {

namespace {

constexpr unsigned kThreads = 256;

template <bool kBarrier>
void sum_kernel(const float* values, float* result) {
  VLMTRAIN_SHARED(float, partial, 8);
  float sum = values[threadIdx.x];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, mask);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  if (kBarrier) __syncthreads();
  float total = 0;
  for (int warp = 0; warp < 8; ++warp) total += partial[warp];
  result[threadIdx.x] = total;
}

void race_kernel(const float* values, float* result) {
  VLMTRAIN_SHARED(float, shared, 256);
  shared[(threadIdx.x + 1) % kThreads] = values[threadIdx.x];
  result[threadIdx.x] = shared[threadIdx.x];
}

void divergent_kernel() {
  if (threadIdx.x < kThreads / 2) __syncthreads();
}

void misaligned_kernel(const float* values, float* result) {
  *result = load<4>(values + 1).values[0];
}

void unwritten_kernel(float* result) {
  VLMTRAIN_SHARED(float, shared, 2);
  if (threadIdx.x == 0) shared[0] = 1;
  __syncthreads();
  *result = shared[0] + shared[1];
}

template <class Kernel, class... Arguments>
void run(Kernel kernel, Arguments... arguments) {
  launch(kernel, Dim3{1, 1, 1}, Dim3{kThreads, 1, 1}, nullptr, arguments...);
}

}  // namespace

std::vector<float> block_sum(const std::vector<float>& values) {
  std::vector<float> result(kThreads);
  run(sum_kernel<true>, values.data(), result.data());
  return result;
}

std::vector<float> block_sum_without_barrier(const std::vector<float>& values) {
  std::vector<float> result(kThreads);
  run(sum_kernel<false>, values.data(), result.data());
  return result;
}

std::vector<float> race(const std::vector<float>& values) {
  std::vector<float> result(kThreads);
  run(race_kernel, values.data(), result.data());
  return result;
}

void divergent_barrier() {
  run(divergent_kernel);
}

void misaligned_read(const std::vector<float>& values) {
  float result = 0;
  run(misaligned_kernel, values.data(), &result);
}

float unwritten() {
  float result = 0;
  run(unwritten_kernel, &result);
  return result;
}

}  // namespace vlmtrain::kernels::planted
