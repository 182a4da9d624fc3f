#include "vlmtrain/kernels/norm.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/emulated.h"

namespace vlmtrain::kernels {
namespace {

constexpr double kNormEps = 1e-6;

/// The two norms of most models, and Gemma's.
std::vector<NormParams> every_norm(int64_t features, at::ScalarType dtype) {
  const auto sample = [&] { return at::randn({features}).to(dtype); };
  return {{.weight = sample(), .bias = sample(), .gain = NormGain::kWeight, .is_centered = true, .eps = kNormEps},
          {.weight = sample(), .bias = {}, .gain = NormGain::kWeight, .is_centered = false, .eps = kNormEps},
          {.weight = sample(), .bias = {}, .gain = NormGain::kOnePlusWeight, .is_centered = false, .eps = kNormEps}};
}

class NormKernel : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static void compare(const at::Tensor& x, const NormParams& params, const at::Tensor& residual,
                      const at::Tensor& gradient) {
    ASSERT_TRUE(can_run_norm(x, params));
    const NormResult actual = norm(x, params, residual);
    expect_close(actual.value, reference::norm(x, params, residual), kTerms);
    expect_close(norm_backward(gradient, x, actual.statistics, params, residual),
                 reference::norm_backward(gradient, x, params, residual), kTerms);
  }

  /// Tolerance for sums over a row with cancellation.
  static constexpr double kTerms = 4;
};

TEST_P(NormKernel, MatchesAtenForwardAndBackward) {
  for (const auto dtype : kTypes) {
    for (const int64_t features : {8, 31, 33, 64, 1024, 4097}) {
      const auto sample = [&] { return at::randn({3, features}).to(dtype); };
      for (const NormParams& params : every_norm(features, dtype)) {
        compare(sample(), params, sample(), sample());
        compare(sample(), params, {}, sample());
      }
    }
  }
}

TEST_P(NormKernel, RmsNormOfSingleFeatureKeepsSign) {
  const at::Tensor x = at::tensor({-3.0F, 2.0F}).view({2, 1});
  const NormResult actual = norm(x, {.weight = at::ones({1}), .eps = kNormEps});
  expect_close(actual.value, at::tensor({-1.0F, 1.0F}).view({2, 1}));
}

TEST_P(NormKernel, RowsMayHaveMoreThanOneDimension) {
  const at::Tensor x = at::randn({2, 3, 8});
  for (const NormParams& params : every_norm(8, at::kFloat)) {
    const NormResult actual = norm(x, params);
    EXPECT_EQ(actual.statistics.rstd.sizes(), at::IntArrayRef({2, 3, 1}));
    expect_close(actual.value, reference::norm(x, params, {}), kTerms);
  }
}

TEST_P(NormKernel, GradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-2;
  const at::Tensor x = at::randn({2, 6}), gradient = at::randn({2, 6}), residual_gradient = at::randn({2, 6});
  for (const NormParams& params : every_norm(6, at::kFloat)) {
    const at::Tensor actual = norm_backward(gradient, x, norm(x, params).statistics, params, residual_gradient);
    const auto estimate_derivative = [&](int64_t i) {
      double sums[2];
      for (const int sign : {0, 1}) {
        at::Tensor perturbed = x.clone();
        perturbed.view(-1)[i] += sign == 0 ? -kStep : kStep;
        sums[sign] = (norm(perturbed, params).value * gradient + perturbed * residual_gradient).sum().item<double>();
      }
      return (sums[1] - sums[0]) / (2 * kStep);
    };
    for (int64_t i = 0; i < 12; ++i) EXPECT_NEAR(actual.view(-1)[i].item<double>(), estimate_derivative(i), 5e-3) << i;
  }
}

TEST_P(NormKernel, SubtractsMeanBeforeSquaring) {
  // Σ x² − n mean² would cancel a spread of 1 around 4,096.
  const at::Tensor x = at::randn({2, 64}).add_(4096);
  const NormParams params{.weight = at::ones({64}), .is_centered = true, .eps = kNormEps};
  expect_close(norm(x, params).value, reference::norm(x, params, {}), /*terms=*/1000);
}

TEST_P(NormKernel, AcceptsEmptyInput) {
  for (const NormParams& params : every_norm(8, at::kFloat)) {
    const at::Tensor x = at::empty({0, 8});
    const NormResult actual = norm(x, params);
    EXPECT_EQ(actual.value.numel(), 0);
    EXPECT_EQ(norm_backward(x, x, actual.statistics, params).numel(), 0);
  }
}

TEST_P(NormKernel, RejectsNonDenseAndMixedTypes) {
  const at::Tensor x = at::randn({4, 8});
  EXPECT_FALSE(can_run_norm(x.t(), {.weight = at::ones({4})}));
  EXPECT_FALSE(can_run_norm(x, {.weight = at::ones({8}).to(at::kBFloat16)}));
  EXPECT_FALSE(can_run_norm(x.to(at::kDouble), {.weight = at::ones({8}).to(at::kDouble)}));
}

TEST_P(NormKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kFeatures = 4096, kRows = (int64_t{1} << 31) / kFeatures + 2;
  for (const NormParams& params : every_norm(kFeatures, at::kBFloat16)) {
    const at::Tensor small = at::randn({1, kFeatures}).to(at::kBFloat16);
    const at::Tensor large = reserve_tensor({kRows, kFeatures}, at::kBFloat16);
    large.narrow(0, kRows - 1, 1).copy_(small);
    settings().max_trailing_blocks = 1;
    const NormResult actual = norm(large, params, large);
    const at::Tensor dx = norm_backward(large, large, actual.statistics, params, large);
    settings().max_trailing_blocks = std::numeric_limits<int64_t>::max();
    const NormResult expected = norm(small, params, small);
    EXPECT_TRUE(at::equal(actual.value.narrow(0, kRows - 1, 1), expected.value));
    EXPECT_TRUE(at::equal(dx.narrow(0, kRows - 1, 1), norm_backward(small, small, expected.statistics, params, small)));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, NormKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
