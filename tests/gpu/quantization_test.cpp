#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "gpu/gpu.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::gpu {
namespace {

class GpuQuantization : public GpuTest,
                        public testing::WithParamInterface<std::tuple<nn::Quantization, at::ScalarType>> {
 protected:
  static std::shared_ptr<nn::QuantizedWeight> quantize_weight(const at::Tensor& weight, at::Device device) {
    const auto [quantization, dtype] = GetParam();
    auto result = nn::Quantizer(quantization, at::TensorOptions(dtype).device(device)).make_weight(weight.sizes());
    result->quantize(weight);
    return result;
  }
};

/// Quantized weights are made on the CPU and copied; their values are fp32 products that are
/// rounded once.
TEST_P(GpuQuantization, StateAndValuesMatchCpu) {
  at::manual_seed(5);
  const at::Tensor weight = at::randn({770, 1033});  // not a multiple of a block
  const auto expected = quantize_weight(weight, at::kCPU), actual = quantize_weight(weight, device_);
  const auto actual_state = actual->state(), expected_state = expected->state();
  ASSERT_EQ(actual_state.size(), expected_state.size());
  for (size_t i = 0; i < actual_state.size(); ++i) {
    EXPECT_TRUE(at::equal(actual_state[i].second.cpu(), expected_state[i].second)) << actual_state[i].first;
  }
  const at::Tensor values = fetch_result(actual->dequantize());
  const double unit = unit_roundoff(std::get<1>(GetParam()));
  deviations_.expect_at_most(4 * unit, parity::largest_difference(values, expected->dequantize()), "largest", "values");
  // Values that are not near a tie of two 16-bit numbers are equal on both devices.
  const double mismatch_rate = values.ne(expected->dequantize()).to(at::kDouble).mean().item<double>();
  if (unit > kFp32Bound) deviations_.expect_at_most(1e-3, mismatch_rate, "share of values that differ", "values");
}

INSTANTIATE_TEST_SUITE_P(Of, GpuQuantization,
                         testing::Combine(testing::Values(nn::Quantization::kNf4, nn::Quantization::kInt8),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& instance) {
                           return nn::to_string(std::get<0>(instance.param)) + "_" +
                                  short_name(std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace vlmtrain::gpu
