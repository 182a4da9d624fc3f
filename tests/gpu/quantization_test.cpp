#include "vlmtrain/nn/quantization.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "gpu/card.h"

namespace vlmtrain::gpu {
namespace {

class GpuQuantization : public CardTest,
                        public testing::WithParamInterface<std::tuple<nn::Quantization, at::ScalarType>> {
 protected:
  static std::shared_ptr<nn::QuantizedWeight> quantized(const at::Tensor& weight, at::Device device) {
    const auto [quantization, dtype] = GetParam();
    auto made = nn::Quantizer(quantization, at::TensorOptions(dtype).device(device)).make(weight.sizes());
    made->quantize(weight);
    return made;
  }
};

/// What is held is made on the CPU and only copied; its values are a product in fp32 that is rounded once.
TEST_P(GpuQuantization, HoldsAndGivesBackWhatTheCpuDoes) {
  at::manual_seed(5);
  const at::Tensor weight = at::randn({770, 1033});  // no multiple of a block
  const auto wanted = quantized(weight, at::kCPU), found = quantized(weight, device_);
  const auto held = found->state(), held_by_cpu = wanted->state();
  ASSERT_EQ(held.size(), held_by_cpu.size());
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_TRUE(at::equal(held[i].second.cpu(), held_by_cpu[i].second)) << held[i].first;
  }
  const at::Tensor values = from_card(found->dequantize());
  const double unit = unit_of(std::get<1>(GetParam()));
  deviations_.expect_at_most(4 * unit, parity::largest_difference(values, wanted->dequantize()), "largest", "values");
  // Rounded once: far from a tie of two 16-bit numbers both sides have the same one.
  const double differ = values.ne(wanted->dequantize()).to(at::kDouble).mean().item<double>();
  if (unit > kFp32Bound) deviations_.expect_at_most(1e-3, differ, "share of values that differ", "values");
}

INSTANTIATE_TEST_SUITE_P(Of, GpuQuantization,
                         testing::Combine(testing::Values(nn::Quantization::kNf4, nn::Quantization::kInt8),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& instance) {
                           return nn::name_of(std::get<0>(instance.param)) + "_" +
                                  short_name(std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace vlmtrain::gpu
