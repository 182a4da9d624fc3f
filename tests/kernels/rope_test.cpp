#include "vlmtrain/kernels/rope.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"

namespace vlmtrain::kernels {
namespace {

class RopeKernel : public EmulatedKernelTest {
 protected:
  /// Splits the columns of x into 4 query, 2 key and 2 value heads.
  static QkvHeads split_heads(const at::Tensor& x, int64_t features) {
    const at::Tensor heads = x.unflatten(-1, {8, features});
    return {heads.narrow(1, 0, 4), heads.narrow(1, 4, 2), heads.narrow(1, 6, 2)};
  }

  static void compare(int64_t rows, int64_t features, at::ScalarType dtype, double direction) {
    at::manual_seed(features);
    const at::Tensor x = at::randn({rows, 8 * features}).to(dtype);
    const at::Tensor angles = at::randn({rows, 1, features / 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    const QkvHeads input = split_heads(x, features);
    const at::Tensor rotated = at::empty({rows, 6, features}, x.options());
    const QkvHeads output{rotated.narrow(1, 0, 4), rotated.narrow(1, 4, 2),
                          at::empty({rows, 2, features}, x.options())};
    rope(output, input, cos, sin, direction);
    expect_close(output.query, reference::rope(input.query, cos, sin, direction));
    expect_close(output.key, reference::rope(input.key, cos, sin, direction));
    EXPECT_TRUE(at::equal(output.value, input.value));
  }
};

TEST_P(RopeKernel, MatchesAten) {
  for (const auto dtype : kTypes) {
    for (const int64_t features : {2, 10, 64, 80, 128, 256}) {
      compare(3, features, dtype, 1);
      compare(3, features, dtype, -1);
    }
  }
}

TEST_P(RopeKernel, InverseRotationIsGradient) {
  const at::Tensor x = at::randn({3, 8 * 64}), angles = at::randn({3, 1, 32});
  const at::Tensor rotated = at::empty_like(x), restored = at::empty_like(x);
  rope(split_heads(rotated, 64), split_heads(x, 64), angles.cos(), angles.sin(), 1);
  rope(split_heads(restored, 64), split_heads(rotated, 64), angles.cos(), angles.sin(), -1);
  expect_close(restored, x);
}

TEST_P(RopeKernel, AcceptsStridedRows) {
  const at::Tensor wide = at::randn({3, 8 * 64 + 5}), x = wide.narrow(1, 3, 8 * 64), angles = at::randn({3, 1, 32});
  const at::Tensor strided_output = at::empty_like(wide), dense_output = at::empty({3, 8 * 64});
  const QkvHeads output = split_heads(strided_output.narrow(1, 3, 8 * 64), 64);
  rope(output, split_heads(x, 64), angles.cos(), angles.sin(), 1);
  rope(split_heads(dense_output, 64), split_heads(x.contiguous(), 64), angles.cos(), angles.sin(), 1);
  EXPECT_TRUE(at::equal(strided_output.narrow(1, 3, 8 * 64), dense_output));
}

TEST_P(RopeKernel, LaunchesNothingForEmptyInput) {
  const at::Tensor empty = at::empty({0, 8 * 64});
  rope(split_heads(empty, 64), split_heads(empty, 64), at::empty({0, 1, 32}), at::empty({0, 1, 32}), 1);
}

TEST_P(RopeKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kFeatures = 128, kRows = (int64_t{1} << 31) / (8 * kFeatures) + 2;
  const at::Tensor x = reserve_tensor({kRows, 8 * kFeatures}, at::kBFloat16);
  const at::Tensor result = reserve_tensor({kRows, 8 * kFeatures}, at::kBFloat16);
  const at::Tensor cos = reserve_tensor({kRows, 1, kFeatures / 2}, at::kFloat);
  const at::Tensor sin = reserve_tensor({kRows, 1, kFeatures / 2}, at::kFloat);
  const at::Tensor row = at::randn({1, 8 * kFeatures}).to(at::kBFloat16), angles = at::randn({1, 1, kFeatures / 2});
  x.narrow(0, kRows - 1, 1).copy_(row);
  cos.narrow(0, kRows - 1, 1).copy_(angles.cos());
  sin.narrow(0, kRows - 1, 1).copy_(angles.sin());
  settings().max_trailing_blocks = 1;
  rope(split_heads(result, kFeatures), split_heads(x, kFeatures), cos, sin, 1);
  const at::Tensor expected = at::empty_like(row);
  rope(split_heads(expected, kFeatures), split_heads(row, kFeatures), angles.cos(), angles.sin(), 1);
  EXPECT_TRUE(at::equal(result.narrow(0, kRows - 1, 1), expected));
}

INSTANTIATE_TEST_SUITE_P(Orders, RopeKernel, kEveryOrder);

constexpr double kEps = 1e-6;

/// Splits the columns of x into 3 query, 2 key and 2 value heads.
QkvHeads split_heads(const at::Tensor& x, int64_t features) {
  const at::Tensor heads = x.unflatten(-1, {7, features});
  return {heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 2)};
}

struct Job {
  Job(int64_t rows, int64_t head_features, at::ScalarType dtype, NormGain gain = NormGain::kWeight)
      : features(head_features),
        x(at::randn({rows, 7 * features}).to(dtype)),
        angles(at::randn({rows, 1, features / 2})),
        cos(angles.cos()),
        sin(angles.sin()),
        norm{at::randn({features}).to(dtype), at::randn({features}).to(dtype), gain, kEps} {}

  at::Tensor forward() {
    const at::Tensor rotated = at::empty({x.size(0), 5, features}, x.options());
    rstd =
        qk_norm_rope({rotated.narrow(1, 0, 3), rotated.narrow(1, 3, 2), {}}, split_heads(x, features), norm, cos, sin);
    return rotated;
  }

  at::Tensor backward(const at::Tensor& gradient, QkNormGradients& weight_gradients) const {
    const at::Tensor dx = at::empty_like(x);
    weight_gradients =
        qk_norm_rope_backward(split_heads(dx, features), split_heads(gradient, features), split_heads(x, features),
                              rstd, norm, cos, sin, /*compute_weight_gradients=*/true);
    return dx;
  }

  int64_t features;
  at::Tensor x, angles, cos, sin;
  QkNormParams norm;
  at::Tensor rstd;
};

class QkNormRopeKernel : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }
};

TEST_P(QkNormRopeKernel, MatchesAtenForwardAndBackward) {
  for (const auto gain : {NormGain::kWeight, NormGain::kOnePlusWeight}) {
    for (const auto dtype : kTypes) {
      for (const int64_t features : {2, 6, 64, 66, 128, 256}) {
        Job job(3, features, dtype, gain);
        const at::Tensor rotated = job.forward(), gradient = at::randn({3, 7 * features}).to(dtype);
        QkNormGradients weight_gradients;
        const QkvHeads x = split_heads(job.x, features), rotated_gradient = split_heads(gradient, features),
                       dx = split_heads(job.backward(gradient, weight_gradients), features);
        const auto compare = [&](const at::Tensor& actual, const at::Tensor& actual_gradient,
                                 const at::Tensor& weight_gradient, const at::Tensor& heads,
                                 const at::Tensor& heads_gradient, const at::Tensor& weight) {
          expect_close(actual, reference::qk_norm_rope(heads, weight, gain, kEps, job.cos, job.sin));
          const auto expected =
              reference::qk_norm_rope_backward(heads_gradient, heads, weight, gain, kEps, job.cos, job.sin);
          expect_close(actual_gradient, expected.heads);
          expect_close(weight_gradient, expected.weight, /*terms=*/6);
        };
        compare(rotated.narrow(1, 0, 3), dx.query, weight_gradients.query_weight, x.query, rotated_gradient.query,
                job.norm.query_weight);
        compare(rotated.narrow(1, 3, 2), dx.key, weight_gradients.key_weight, x.key, rotated_gradient.key,
                job.norm.key_weight);
        EXPECT_TRUE(at::equal(dx.value, rotated_gradient.value));
      }
    }
  }
}

TEST_P(QkNormRopeKernel, GradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-2;
  Job job(2, 6, at::kFloat);
  const at::Tensor gradient = at::randn({2, 7 * 6});
  job.forward();
  QkNormGradients weight_gradients;
  const at::Tensor actual = job.backward(gradient, weight_gradients);
  const at::Tensor rotated_gradient = gradient.narrow(1, 0, 5 * 6);
  const auto estimate_derivative = [&](at::Tensor& parameter, int64_t i) {
    const at::Tensor original = parameter.clone();
    double sums[2];
    for (const int sign : {0, 1}) {
      parameter.copy_(original);
      parameter.view(-1)[i] += sign == 0 ? -kStep : kStep;
      sums[sign] = (job.forward().view({2, -1}) * rotated_gradient).sum().item<double>();
    }
    parameter.copy_(original);
    return (sums[1] - sums[0]) / (2 * kStep);
  };
  for (int64_t i = 0; i < 5 * 6; ++i)
    EXPECT_NEAR(actual.view(-1)[i].item<double>(), estimate_derivative(job.x, i), 5e-3) << i;
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(weight_gradients.query_weight[i].item<double>(), estimate_derivative(job.norm.query_weight, i), 5e-3)
        << i;
    EXPECT_NEAR(weight_gradients.key_weight[i].item<double>(), estimate_derivative(job.norm.key_weight, i), 5e-3) << i;
  }
}

TEST_P(QkNormRopeKernel, IgnoresStridesOfSingleRow) {
  Job job(1, 64, at::kFloat);
  const at::Tensor expected = job.forward(), rotated = at::empty_like(expected);
  QkvHeads x = split_heads(job.x, 64);
  x.key = x.key.as_strided(x.key.sizes(), {1, 64, 1});
  qk_norm_rope({rotated.narrow(1, 0, 3), rotated.narrow(1, 3, 2), {}}, x, job.norm, job.cos, job.sin);
  EXPECT_TRUE(at::equal(rotated, expected));
}

TEST_P(QkNormRopeKernel, EmptyInputGivesZeroWeightGradient) {
  Job job(0, 64, at::kFloat);
  EXPECT_EQ(job.forward().numel(), 0);
  QkNormGradients weight_gradients;
  EXPECT_EQ(job.backward(at::empty({0, 7 * 64}), weight_gradients).numel(), 0);
  EXPECT_TRUE(at::equal(weight_gradients.key_weight, at::zeros({64})));
}

TEST_P(QkNormRopeKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kFeatures = 256, kRows = (int64_t{1} << 31) / (7 * kFeatures) + 2;
  Job small(1, kFeatures, at::kBFloat16), large = small;
  large.x = reserve_tensor({kRows, 7 * kFeatures}, at::kBFloat16);
  large.cos = reserve_tensor({kRows, 1, kFeatures / 2}, at::kFloat);
  large.sin = reserve_tensor({kRows, 1, kFeatures / 2}, at::kFloat);
  large.x.narrow(0, kRows - 1, 1).copy_(small.x);
  large.cos.narrow(0, kRows - 1, 1).copy_(small.cos);
  large.sin.narrow(0, kRows - 1, 1).copy_(small.sin);
  settings().max_trailing_blocks = 1;
  const at::Tensor rotated = large.forward();
  settings().max_trailing_blocks = std::numeric_limits<int64_t>::max();
  // The last block has eight heads of the last rows.
  EXPECT_TRUE(at::equal(rotated.narrow(0, kRows - 1, 1).narrow(1, 2, 3), small.forward().narrow(1, 2, 3)));
}

INSTANTIATE_TEST_SUITE_P(Orders, QkNormRopeKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
