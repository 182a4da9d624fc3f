#include "vlmtrain/kernels/norm.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

constexpr double kNormEps = 1e-6;

/// The two of which most models consist, and Gemma's.
std::vector<Norm> every_norm(int64_t features, at::ScalarType dtype) {
  const auto draw = [&] { return at::randn({features}).to(dtype); };
  return {{.weight = draw(), .bias = draw(), .gain = Gain::kWeight, .is_centered = true, .eps = kNormEps},
          {.weight = draw(), .bias = {}, .gain = Gain::kWeight, .is_centered = false, .eps = kNormEps},
          {.weight = draw(), .bias = {}, .gain = Gain::kOnePlusWeight, .is_centered = false, .eps = kNormEps}};
}

class NormKernel : public EmulatedKernels {
 protected:
  void SetUp() override {
    EmulatedKernels::SetUp();
    at::manual_seed(1);
  }

  static void compare(const at::Tensor& x, const Norm& by, const at::Tensor& other, const at::Tensor& gradient) {
    ASSERT_TRUE(can_norm(x, by));
    const Normed made = norm(x, by, other);
    expect_close(made.value, reference::norm(x, by, other), kTerms);
    expect_close(norm_backward(gradient, x, made.statistics, by, other),
                 reference::norm_backward(gradient, x, by, other), kTerms);
  }

  /// Of sums over a row, and what is left of them.
  static constexpr double kTerms = 4;
};

TEST_P(NormKernel, ComputesWhatAtenDoesForwardsAndBackwards) {
  for (const auto dtype : kTypes) {
    for (const int64_t features : {8, 31, 33, 64, 1024, 4097}) {
      const auto draw = [&] { return at::randn({3, features}).to(dtype); };
      for (const Norm& by : every_norm(features, dtype)) {
        compare(draw(), by, draw(), draw());
        compare(draw(), by, {}, draw());
      }
    }
  }
}

TEST_P(NormKernel, OfASingleFeatureAnRmsNormLeavesTheSign) {
  const at::Tensor x = at::tensor({-3.0F, 2.0F}).view({2, 1});
  const Normed made = norm(x, {.weight = at::ones({1}), .eps = kNormEps});
  expect_close(made.value, at::tensor({-1.0F, 1.0F}).view({2, 1}));
}

TEST_P(NormKernel, RowsMayHaveMoreThanOneDimension) {
  const at::Tensor x = at::randn({2, 3, 8});
  for (const Norm& by : every_norm(8, at::kFloat)) {
    const Normed made = norm(x, by);
    EXPECT_EQ(made.statistics.reciprocal.sizes(), at::IntArrayRef({2, 3, 1}));
    expect_close(made.value, reference::norm(x, by, {}), kTerms);
  }
}

TEST_P(NormKernel, ItsGradientIsItsSlope) {
  constexpr double kStep = 1e-2;
  const at::Tensor x = at::randn({2, 6}), gradient = at::randn({2, 6}), passing = at::randn({2, 6});
  for (const Norm& by : every_norm(6, at::kFloat)) {
    const at::Tensor found = norm_backward(gradient, x, norm(x, by).statistics, by, passing);
    const auto slope = [&](int64_t i) {
      double sums[2];
      for (const int sign : {0, 1}) {
        at::Tensor moved = x.clone();
        moved.view(-1)[i] += sign == 0 ? -kStep : kStep;
        sums[sign] = (norm(moved, by).value * gradient + moved * passing).sum().item<double>();
      }
      return (sums[1] - sums[0]) / (2 * kStep);
    };
    for (int64_t i = 0; i < 12; ++i) EXPECT_NEAR(found.view(-1)[i].item<double>(), slope(i), 5e-3) << i;
  }
}

TEST_P(NormKernel, TheMeanOfLargeNumbersIsTakenAwayBeforeTheyAreSquared) {
  // Σ x² − n mean² would leave nothing of a spread of 1 around 4,096.
  const at::Tensor x = at::randn({2, 64}).add_(4096);
  const Norm by{.weight = at::ones({64}), .is_centered = true, .eps = kNormEps};
  expect_close(norm(x, by).value, reference::norm(x, by, {}), /*terms=*/1000);
}

TEST_P(NormKernel, NoRowsAreNormed) {
  for (const Norm& by : every_norm(8, at::kFloat)) {
    const at::Tensor x = at::empty({0, 8});
    const Normed made = norm(x, by);
    EXPECT_EQ(made.value.numel(), 0);
    EXPECT_EQ(norm_backward(x, x, made.statistics, by).numel(), 0);
  }
}

TEST_P(NormKernel, WhatIsNotDenseOrOfAnotherTypeIsLeftToAten) {
  const at::Tensor x = at::randn({4, 8});
  EXPECT_FALSE(can_norm(x.t(), {.weight = at::ones({4})}));
  EXPECT_FALSE(can_norm(x, {.weight = at::ones({8}).to(at::kBFloat16)}));
  EXPECT_FALSE(can_norm(x.to(at::kDouble), {.weight = at::ones({8}).to(at::kDouble)}));
}

TEST_P(NormKernel, CountsBeyondThirtyTwoBits) {
  constexpr int64_t kFeatures = 4096, kRows = (int64_t{1} << 31) / kFeatures + 2;
  for (const Norm& by : every_norm(kFeatures, at::kBFloat16)) {
    const at::Tensor small = at::randn({1, kFeatures}).to(at::kBFloat16);
    const at::Tensor large = without_memory({kRows, kFeatures}, at::kBFloat16);
    large.narrow(0, kRows - 1, 1).copy_(small);
    settings().last_blocks = 1;
    const Normed made = norm(large, by, large);
    const at::Tensor of_x = norm_backward(large, large, made.statistics, by, large);
    settings().last_blocks = std::numeric_limits<int64_t>::max();
    const Normed wanted = norm(small, by, small);
    EXPECT_TRUE(at::equal(made.value.narrow(0, kRows - 1, 1), wanted.value));
    EXPECT_TRUE(at::equal(of_x.narrow(0, kRows - 1, 1), norm_backward(small, small, wanted.statistics, by, small)));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, NormKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
