#include "vlmtrain/nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/card.h"

namespace vlmtrain::gpu {
namespace {

class GpuDropout : public CardTest {
 protected:
  static constexpr double kShare = 0.3;

  /// What is left of ones.
  at::Tensor drop(const std::vector<nn::DropoutUnit>& units, uint64_t layer = 1) const {
    int64_t rows = 0;
    for (const auto& unit : units) rows += unit.share;
    const nn::DropoutScope scope(units);
    return from_card(nn::unit_dropout(at::ones({rows, 48}, at::TensorOptions(device_)), kShare, layer));
  }
};

TEST_F(GpuDropout, OfAUnitDoesNotDependOnTheOthers) {
  const at::Tensor together = drop({{11, 50}, {12, 80}, {13, 30}});
  EXPECT_TRUE(at::equal(together.narrow(0, 0, 50), drop({{11, 50}})));
  EXPECT_TRUE(at::equal(together.narrow(0, 50, 110), drop({{12, 80}, {13, 30}})));
  EXPECT_FALSE(at::equal(together.narrow(0, 0, 50), drop({{14, 50}})));
  EXPECT_FALSE(at::equal(together.narrow(0, 0, 50), drop({{11, 50}}, /*layer=*/2)));
  EXPECT_FALSE(fault_is_planted());
}

TEST_F(GpuDropout, OfSeveralReadersDoesNotDependOnTheOtherUnits) {
  const auto left_of_ones = [&](const std::vector<nn::DropoutUnit>& units) {
    int64_t rows = 0;
    for (const auto& unit : units) rows += unit.share;
    const nn::DropoutScope scope(units);
    const at::Tensor ones = at::ones({rows, 48}, at::TensorOptions(device_));
    std::vector<at::Tensor> left;
    nn::ReadersDropout(ones, 3, kShare, /*layer=*/1).drop(ones, [&](int64_t /*reader*/, const at::Tensor& dropped) {
      left.push_back(dropped);
    });
    return from_card(at::stack(left));
  };
  const at::Tensor together = left_of_ones({{11, 50}, {12, 80}, {13, 30}});
  EXPECT_TRUE(at::equal(together.narrow(1, 0, 50), left_of_ones({{11, 50}})));
  EXPECT_TRUE(at::equal(together.narrow(1, 50, 110), left_of_ones({{12, 80}, {13, 30}})));
  EXPECT_FALSE(at::equal(together[0], together[1]));
  EXPECT_FALSE(at::equal(together[1], together[2]));
  EXPECT_FALSE(fault_is_planted());
}

TEST_F(GpuDropout, DropsTheAskedShareAndScalesTheRest) {
  const at::Tensor left = drop({{1, 1000}, {2, 500}, {3, 1500}});
  const float scaled = static_cast<float>(1 / (1 - kShare));
  EXPECT_EQ(at::logical_and(left.ne(0), left.ne(scaled)).sum().item<int64_t>(), 0);
  // Five standard deviations of the mean of that many draws.
  const double tolerance = 5 * std::sqrt(kShare * (1 - kShare) / static_cast<double>(left.numel()));
  EXPECT_NEAR(left.eq(0).to(at::kDouble).mean().item<double>(), kShare, tolerance);
}

}  // namespace
}  // namespace vlmtrain::gpu
