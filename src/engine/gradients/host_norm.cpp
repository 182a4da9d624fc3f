#include "engine/gradients/host_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

/// Elements per chunk, 256 KiB of fp32; no measurement of other sizes is recorded. Another value
/// changes the rounding of norms.
constexpr int64_t kNormChunkElements = 65'536;

double compute_sum_of_squares(const float* values, int64_t count) {
  // Independent sums, so that compilers vectorize the loop. Their number determines the rounding,
  // so it is the same on all machines.
  constexpr int64_t kNumLanes = 16;
  std::array<double, kNumLanes> lane_sums{};
  const int64_t num_vectorized_values = count / kNumLanes * kNumLanes;
  for (int64_t i = 0; i < num_vectorized_values; i += kNumLanes) {
    for (int64_t lane = 0; lane < kNumLanes; ++lane) {
      const double value = values[i + lane];
      lane_sums[static_cast<size_t>(lane)] += value * value;
    }
  }
  double sum = std::accumulate(lane_sums.begin(), lane_sums.end(), 0.0);
  for (int64_t i = num_vectorized_values; i < count; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

}  // namespace

at::Tensor compute_host_norm(const std::vector<at::Tensor>& tensors) {
  struct Chunk {
    const float* values;
    int64_t count;
  };
  std::vector<Chunk> chunks;
  std::vector<at::Tensor> contiguous_tensors;  // keeps copies of strided tensors alive
  for (const auto& tensor : tensors) {
    VLMTRAIN_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kFloat, "expected an fp32 tensor on the CPU, got {}",
                   tensor.toString());
    const at::Tensor& contiguous_tensor = contiguous_tensors.emplace_back(tensor.contiguous());
    const auto* const values = contiguous_tensor.const_data_ptr<float>();
    for (int64_t first = 0; first < contiguous_tensor.numel(); first += kNormChunkElements) {
      chunks.push_back(
          {.values = values + first, .count = std::min(kNormChunkElements, contiguous_tensor.numel() - first)});
    }
  }
  std::vector<double> sums(chunks.size());
  at::parallel_for(0, std::ssize(chunks), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [values, count] = chunks[static_cast<size_t>(i)];
      sums[static_cast<size_t>(i)] = compute_sum_of_squares(values, count);
    }
  });
  at::Tensor norm = at::empty({}, at::kFloat);
  *norm.mutable_data_ptr<float>() = static_cast<float>(std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0)));
  return norm;
}

}  // namespace vlmtrain::engine
