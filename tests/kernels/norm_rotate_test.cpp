#include "vlmtrain/kernels/norm_rotate.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

constexpr double kEps = 1e-6;

/// 3 heads of queries, 2 of keys, 2 of values in the columns of x.
Heads parts_of(const at::Tensor& x, int64_t features) {
  const at::Tensor heads = x.unflatten(-1, {7, features});
  return {heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 2)};
}

struct Job {
  Job(int64_t rows, int64_t head_features, at::ScalarType dtype, Gain gain = Gain::kWeight)
      : features(head_features),
        x(at::randn({rows, 7 * features}).to(dtype)),
        angles(at::randn({rows, 1, features / 2})),
        cos(angles.cos()),
        sin(angles.sin()),
        norm{at::randn({features}).to(dtype), at::randn({features}).to(dtype), gain, kEps} {}

  at::Tensor forward() {
    const at::Tensor rotated = at::empty({x.size(0), 5, features}, x.options());
    reciprocal =
        norm_rotate({rotated.narrow(1, 0, 3), rotated.narrow(1, 3, 2), {}}, parts_of(x, features), norm, cos, sin);
    return rotated;
  }

  at::Tensor backward(const at::Tensor& gradient, HeadNormGradients& of_weights) const {
    const at::Tensor of_x = at::empty_like(x);
    of_weights = norm_rotate_backward(parts_of(of_x, features), parts_of(gradient, features), parts_of(x, features),
                                      reciprocal, norm, cos, sin, /*weights_wanted=*/true);
    return of_x;
  }

  int64_t features;
  at::Tensor x, angles, cos, sin;
  HeadNorm norm;
  at::Tensor reciprocal;
};

class NormRotateKernel : public EmulatedKernels {
 protected:
  void SetUp() override {
    EmulatedKernels::SetUp();
    at::manual_seed(1);
  }
};

TEST_P(NormRotateKernel, ComputesWhatAtenDoesForwardsAndBackwards) {
  for (const auto gain : {Gain::kWeight, Gain::kOnePlusWeight}) {
    for (const auto dtype : kTypes) {
      for (const int64_t features : {2, 6, 64, 66, 128, 256}) {
        Job job(3, features, dtype, gain);
        const at::Tensor rotated = job.forward(), gradient = at::randn({3, 7 * features}).to(dtype);
        HeadNormGradients of_weights;
        const Heads x = parts_of(job.x, features), of_rotated = parts_of(gradient, features),
                    of_x = parts_of(job.backward(gradient, of_weights), features);
        const auto compare = [&](const at::Tensor& made, const at::Tensor& made_gradient, const at::Tensor& of_weight,
                                 const at::Tensor& heads, const at::Tensor& of_heads, const at::Tensor& weight) {
          expect_close(made, reference::norm_rotate(heads, weight, gain, kEps, job.cos, job.sin));
          const auto wanted = reference::norm_rotate_backward(of_heads, heads, weight, gain, kEps, job.cos, job.sin);
          expect_close(made_gradient, wanted.heads);
          expect_close(of_weight, wanted.weight, /*terms=*/6);
        };
        compare(rotated.narrow(1, 0, 3), of_x.query, of_weights.query_weight, x.query, of_rotated.query,
                job.norm.query_weight);
        compare(rotated.narrow(1, 3, 2), of_x.key, of_weights.key_weight, x.key, of_rotated.key, job.norm.key_weight);
        EXPECT_TRUE(at::equal(of_x.value, of_rotated.value));
      }
    }
  }
}

TEST_P(NormRotateKernel, ItsGradientIsItsSlope) {
  constexpr double kStep = 1e-2;
  Job job(2, 6, at::kFloat);
  const at::Tensor gradient = at::randn({2, 7 * 6});
  job.forward();
  HeadNormGradients of_weights;
  const at::Tensor found = job.backward(gradient, of_weights);
  const at::Tensor of_rotated = gradient.narrow(1, 0, 5 * 6);
  const auto slope = [&](at::Tensor& moved, int64_t i) {
    const at::Tensor kept = moved.clone();
    double sums[2];
    for (const int sign : {0, 1}) {
      moved.copy_(kept);
      moved.view(-1)[i] += sign == 0 ? -kStep : kStep;
      sums[sign] = (job.forward().view({2, -1}) * of_rotated).sum().item<double>();
    }
    moved.copy_(kept);
    return (sums[1] - sums[0]) / (2 * kStep);
  };
  for (int64_t i = 0; i < 5 * 6; ++i) EXPECT_NEAR(found.view(-1)[i].item<double>(), slope(job.x, i), 5e-3) << i;
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(of_weights.query_weight[i].item<double>(), slope(job.norm.query_weight, i), 5e-3) << i;
    EXPECT_NEAR(of_weights.key_weight[i].item<double>(), slope(job.norm.key_weight, i), 5e-3) << i;
  }
}

TEST_P(NormRotateKernel, OfASingleRowStridesMeanNothing) {
  Job job(1, 64, at::kFloat);
  const at::Tensor wanted = job.forward(), rotated = at::empty_like(wanted);
  Heads x = parts_of(job.x, 64);
  x.key = x.key.as_strided(x.key.sizes(), {1, 64, 1});
  norm_rotate({rotated.narrow(1, 0, 3), rotated.narrow(1, 3, 2), {}}, x, job.norm, job.cos, job.sin);
  EXPECT_TRUE(at::equal(rotated, wanted));
}

TEST_P(NormRotateKernel, NoRowsGiveWeightsNoGradient) {
  Job job(0, 64, at::kFloat);
  EXPECT_EQ(job.forward().numel(), 0);
  HeadNormGradients of_weights;
  EXPECT_EQ(job.backward(at::empty({0, 7 * 64}), of_weights).numel(), 0);
  EXPECT_TRUE(at::equal(of_weights.key_weight, at::zeros({64})));
}

TEST_P(NormRotateKernel, CountsBeyondThirtyTwoBits) {
  constexpr int64_t kFeatures = 256, kRows = (int64_t{1} << 31) / (7 * kFeatures) + 2;
  Job small(1, kFeatures, at::kBFloat16), large = small;
  large.x = without_memory({kRows, 7 * kFeatures}, at::kBFloat16);
  large.cos = without_memory({kRows, 1, kFeatures / 2}, at::kFloat);
  large.sin = without_memory({kRows, 1, kFeatures / 2}, at::kFloat);
  large.x.narrow(0, kRows - 1, 1).copy_(small.x);
  large.cos.narrow(0, kRows - 1, 1).copy_(small.cos);
  large.sin.narrow(0, kRows - 1, 1).copy_(small.sin);
  settings().last_blocks = 1;
  const at::Tensor rotated = large.forward();
  settings().last_blocks = std::numeric_limits<int64_t>::max();
  // The last block has eight heads of the last rows.
  EXPECT_TRUE(at::equal(rotated.narrow(0, kRows - 1, 1).narrow(1, 2, 3), small.forward().narrow(1, 2, 3)));
}

INSTANTIATE_TEST_SUITE_P(Orders, NormRotateKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
