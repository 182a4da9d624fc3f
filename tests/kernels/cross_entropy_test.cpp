#include "vlmtrain/kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"

namespace vlmtrain::kernels {
namespace {

class CrossEntropyKernel : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static void compare(const at::Tensor& logits, const at::Tensor& labels, double factor, const at::Tensor& row_factors,
                      double logit_soft_cap = 0) {
    const auto expected = reference::cross_entropy(logits, labels, factor, row_factors, logit_soft_cap);
    const at::Tensor gradient = logits.clone();
    const auto actual = cross_entropy(gradient, labels, factor, row_factors, /*compute_gradient=*/true, logit_soft_cap);
    expect_close(actual.cross_entropy, expected.cross_entropy);
    EXPECT_TRUE(at::equal(actual.is_correct, expected.is_correct));
    expect_close(gradient, expected.logits_gradient);
  }
};

TEST_P(CrossEntropyKernel, MatchesAten) {
  for (const auto dtype : kTypes) {
    for (const int64_t vocabulary : {1, 31, 33, 64, 4097, 8192}) {
      const at::Tensor logits = at::randn({3, vocabulary}).mul_(4).to(dtype);
      const at::Tensor labels = at::randint(vocabulary, {3}, at::kLong);
      compare(logits, labels, 1, {});
      compare(logits, labels, 0.25, at::rand({3}));
    }
  }
}

TEST_P(CrossEntropyKernel, MatchesAtenWithASoftCap) {
  for (const auto dtype : kTypes) {
    for (const int64_t vocabulary : {1, 33, 4097, 8192}) {
      for (const double logit_soft_cap : {2.0, 30.0}) {
        const at::Tensor logits = at::randn({3, vocabulary}).mul_(4).to(dtype);
        compare(logits, at::randint(vocabulary, {3}, at::kLong), 0.25, at::rand({3}), logit_soft_cap);
      }
    }
  }
}

/// The derivative must not become negative or NaN where tanh rounds to 1.
TEST_P(CrossEntropyKernel, SoftCapBoundsInfiniteLogits) {
  const at::Tensor logits = at::tensor({-INFINITY, 100.0F, INFINITY, -3e4F, 0.0F}).repeat({2, 7});
  compare(logits, at::tensor({2, 4}, at::kLong), 1, {}, /*logit_soft_cap=*/3);
}

TEST_P(CrossEntropyKernel, MarksCorrectLabels) {
  const at::Tensor logits = at::tensor({1.0F, 3.0F, 2.0F, 3.0F}).repeat({4, 1});
  const auto actual = cross_entropy(logits, at::arange(4, at::kLong), 1, {}, /*compute_gradient=*/false);
  EXPECT_TRUE(at::equal(actual.is_correct.view(-1), at::tensor({0.0F, 1.0F, 0.0F, 1.0F})))
      << "of two that are alike both";
}

TEST_P(CrossEntropyKernel, LogitsStayUnchangedWithoutGradient) {
  const at::Tensor logits = at::randn({3, 70}), before = logits.clone();
  cross_entropy(logits, at::arange(3, at::kLong), 1, {}, /*compute_gradient=*/false);
  EXPECT_TRUE(at::equal(logits, before));
}

TEST_P(CrossEntropyKernel, LargeLogitsDoNotOverflow) {
  const at::Tensor logits = at::tensor({-3e4F, 100.0F, 3e4F, -INFINITY}).repeat({2, 20});
  compare(logits, at::tensor({2, 1}, at::kLong), 1, {});
}

TEST_P(CrossEntropyKernel, GradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-2;
  for (const double logit_soft_cap : {0.0, 1.5}) {
    const at::Tensor logits = at::randn({2, 9}), labels = at::tensor({4, 0}, at::kLong),
                     row_factors = at::tensor({0.5F, 2.0F});
    const at::Tensor gradient = logits.clone();
    cross_entropy(gradient, labels, 1, row_factors, /*compute_gradient=*/true, logit_soft_cap);
    for (int64_t i = 0; i < logits.numel(); ++i) {
      const auto compute_perturbed_loss = [&](double delta) {
        const at::Tensor perturbed = logits.clone();
        perturbed.view(-1)[i] += delta;
        const auto rows = cross_entropy(perturbed, labels, 1, row_factors, /*compute_gradient=*/false, logit_soft_cap);
        return (rows.cross_entropy.view(-1) * row_factors).sum().item<double>();
      };
      EXPECT_NEAR(gradient.view(-1)[i].item<double>(),
                  (compute_perturbed_loss(kStep) - compute_perturbed_loss(-kStep)) / (2 * kStep), 2e-4);
    }
  }
}

TEST_P(CrossEntropyKernel, LaunchesNothingForEmptyInput) {
  const auto result = cross_entropy(at::empty({0, 8}), at::empty({0}, at::kLong), 1, {}, /*compute_gradient=*/true);
  EXPECT_EQ(result.cross_entropy.sizes(), at::IntArrayRef({0, 1}));
}

TEST_P(CrossEntropyKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kVocabulary = 1024, kRows = (int64_t{1} << 31) / kVocabulary + 2;
  const at::Tensor logits = reserve_tensor({kRows, kVocabulary}, at::kBFloat16);
  const at::Tensor labels = reserve_tensor({kRows}, at::kLong);
  const at::Tensor row = at::randn({1, kVocabulary}).to(at::kBFloat16);
  logits.narrow(0, kRows - 1, 1).copy_(row);
  labels[kRows - 1] = 7;
  settings().max_trailing_blocks = 1;
  const auto actual = cross_entropy(logits, labels, 1, {}, /*compute_gradient=*/true);
  const auto expected = cross_entropy(row, at::tensor({7}, at::kLong), 1, {}, /*compute_gradient=*/true);
  EXPECT_TRUE(at::equal(actual.cross_entropy.narrow(0, kRows - 1, 1), expected.cross_entropy));
  EXPECT_TRUE(at::equal(logits.narrow(0, kRows - 1, 1), row));
}

INSTANTIATE_TEST_SUITE_P(Orders, CrossEntropyKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
