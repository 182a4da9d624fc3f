#include "vlmtrain/nn/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gpu/gpu.h"

namespace vlmtrain::gpu {
namespace {

/// Shapes of the models, and shapes at which kernels change their block sizes.
struct Shape {
  std::string name;
  std::vector<int64_t> lengths;
  int64_t heads;
  int64_t key_value_heads;
  int64_t head_dim;
  bool causal;
  std::optional<int64_t> window = std::nullopt;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

std::vector<Shape> shapes() {
  return {{"windows_of_qwen", {64, 64, 16, 48, 64, 12}, 16, 16, 80, false},
          {"one_frame", {1024, 420}, 4, 4, 80, false},
          {"tiles_of_siglip", {256, 256, 256}, 12, 12, 64, false},
          {"head_of_72", {196, 196}, 4, 4, 72, false},
          {"grouped_text", {1, 7, 127, 128, 129, 300}, 9, 3, 64, true},
          {"text_of_qwen", {33, 500}, 14, 2, 128, true},
          {"sliding_window", {30, 200, 65}, 8, 2, 64, true, 64}};
}

struct AttentionResult {
  std::vector<at::Tensor> tensors;  ///< output and gradients of query, key and value; fp32 on the CPU
};

/// Inputs are generated on the CPU and rounded to `input_dtype`, so that both devices have the
/// same.
AttentionResult run_attention(const Shape& shape, at::Device device, at::ScalarType dtype, at::ScalarType input_dtype) {
  at::manual_seed(3);
  int64_t rows = 0;
  for (const int64_t length : shape.lengths) rows += length;
  const auto sample = [&](int64_t heads) {
    return at::randn({rows, heads, shape.head_dim}).to(input_dtype).to(device, dtype).set_requires_grad(true);
  };
  const at::Tensor query = sample(shape.heads), key = sample(shape.key_value_heads),
                   value = sample(shape.key_value_heads);
  const at::Tensor upstream = at::randn({rows, shape.heads, shape.head_dim}).to(input_dtype).to(device, dtype);
  const auto segments = nn::Segments::from_lengths(shape.lengths, device);
  const at::Tensor output = nn::attention(query, key, value, segments, shape.causal, shape.window);
  const auto gradients = torch::autograd::grad({output}, {query, key, value}, {upstream});
  AttentionResult result{.tensors = {output}};
  result.tensors.insert(result.tensors.end(), gradients.begin(), gradients.end());
  for (auto& tensor : result.tensors) {
    tensor = device == at::kCPU ? tensor.detach().to(at::kFloat) : tensor.detach().to(at::kFloat).cpu();
  }
  return result;
}

class GpuAttention : public GpuTest, public testing::WithParamInterface<std::tuple<at::ScalarType, Shape>> {};

TEST_P(GpuAttention, AndGradientsMatchCpu) {
  const auto& [dtype, shape] = GetParam();
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const AttentionResult expected = run_attention(shape, at::kCPU, at::kFloat, dtype);
  const AttentionResult actual = run_attention(shape, device_, dtype, dtype);
  // Kernels compute scores in fp32 and round weights and results to 16 bits. Gradients are computed
  // from rounded outputs, and those of shared keys are rounded per query head before they are
  // summed.
  const double bound = dtype == at::kFloat ? kFp32Bound : 2 * unit_roundoff(dtype);
  const std::vector<std::string> names{"output", "query's gradient", "key's gradient", "value's gradient"};
  for (size_t i = 0; i < names.size(); ++i) {
    const double factor = i == 0 || dtype == at::kFloat ? 1 : 2;
    deviations_.expect_at_most(factor * bound,
                               parity::relative_difference(fetch_result(actual.tensors[i]), expected.tensors[i]),
                               names[i], shape.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GpuAttention,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::ValuesIn(shapes())),
                         [](const auto& instance) {
                           return std::get<1>(instance.param).name + "_" + short_name(std::get<0>(instance.param));
                         });

class GpuSlotAttention : public GpuTest, public testing::WithParamInterface<at::ScalarType> {};

/// One generation step: a new row per sequence, in slots with unused space after their keys.
TEST_P(GpuSlotAttention, MatchesCpu) {
  const at::ScalarType dtype = GetParam();
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const auto attend_slots = [&](at::Device device, at::ScalarType compute_dtype) {
    at::manual_seed(4);
    const auto sample = [&](int64_t rows, int64_t heads) {
      return at::randn({rows, heads, 64}).to(dtype).to(device, compute_dtype);
    };
    const at::Tensor query = sample(3, 9), key = sample(400, 3), value = sample(400, 3);
    const auto slots = nn::CacheSlots::from_starts_and_lengths({0, 70, 300}, {65, 200, 1}, device);
    return nn::decode_attention(query, key, value, slots);
  };
  const at::NoGradGuard no_gradients;
  const at::Tensor expected = attend_slots(at::kCPU, at::kFloat);
  deviations_.expect_at_most(dtype == at::kFloat ? kFp32Bound : 2 * unit_roundoff(dtype),
                             parity::relative_difference(fetch_result(attend_slots(device_, dtype)), expected),
                             "output", "slots");
}

INSTANTIATE_TEST_SUITE_P(Of, GpuSlotAttention, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& instance) { return short_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::gpu
