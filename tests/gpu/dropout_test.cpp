#include "vlmtrain/nn/layers/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/gpu.h"

namespace vlmtrain::gpu {
namespace {

class GpuDropout : public GpuTest {
 protected:
  static constexpr double kProbability = 0.3;

  /// Returns ones after dropout.
  at::Tensor drop(const std::vector<nn::DropoutSegment>& units, uint64_t layer = 1) const {
    int64_t rows = 0;
    for (const auto& unit : units) rows += unit.row_weight;
    const nn::DropoutScope scope(units);
    return fetch_result(nn::segment_dropout(at::ones({rows, 48}, at::TensorOptions(device_)), kProbability, layer));
  }
};

TEST_F(GpuDropout, UnitIsIndependentOfOthers) {
  const at::Tensor combined = drop({{11, 50}, {12, 80}, {13, 30}});
  EXPECT_TRUE(at::equal(combined.narrow(0, 0, 50), drop({{11, 50}})));
  EXPECT_TRUE(at::equal(combined.narrow(0, 50, 110), drop({{12, 80}, {13, 30}})));
  EXPECT_FALSE(at::equal(combined.narrow(0, 0, 50), drop({{14, 50}})));
  EXPECT_FALSE(at::equal(combined.narrow(0, 0, 50), drop({{11, 50}}, /*layer=*/2)));
  EXPECT_FALSE(is_fault_planted());
}

TEST_F(GpuDropout, MultipleReadersAreIndependentOfOtherUnits) {
  const auto drop_for_readers = [&](const std::vector<nn::DropoutSegment>& units) {
    int64_t rows = 0;
    for (const auto& unit : units) rows += unit.row_weight;
    const nn::DropoutScope scope(units);
    const at::Tensor ones = at::ones({rows, 48}, at::TensorOptions(device_));
    std::vector<at::Tensor> reader_outputs;
    nn::IndependentDropouts(ones, 3, kProbability, /*layer=*/1)
        .apply(ones, [&](int64_t /*reader*/, const at::Tensor& output) { reader_outputs.push_back(output); });
    return fetch_result(at::stack(reader_outputs));
  };
  const at::Tensor combined = drop_for_readers({{11, 50}, {12, 80}, {13, 30}});
  EXPECT_TRUE(at::equal(combined.narrow(1, 0, 50), drop_for_readers({{11, 50}})));
  EXPECT_TRUE(at::equal(combined.narrow(1, 50, 110), drop_for_readers({{12, 80}, {13, 30}})));
  EXPECT_FALSE(at::equal(combined[0], combined[1]));
  EXPECT_FALSE(at::equal(combined[1], combined[2]));
  EXPECT_FALSE(is_fault_planted());
}

TEST_F(GpuDropout, DropRateMatchesProbability) {
  const at::Tensor dropped = drop({{1, 1000}, {2, 500}, {3, 1500}});
  const float scaled = static_cast<float>(1 / (1 - kProbability));
  EXPECT_EQ(at::logical_and(dropped.ne(0), dropped.ne(scaled)).sum().item<int64_t>(), 0);
  // Five standard deviations of the mean of that many draws.
  const double tolerance = 5 * std::sqrt(kProbability * (1 - kProbability) / static_cast<double>(dropped.numel()));
  EXPECT_NEAR(dropped.eq(0).to(at::kDouble).mean().item<double>(), kProbability, tolerance);
}

}  // namespace
}  // namespace vlmtrain::gpu
