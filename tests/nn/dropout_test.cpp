#include "vlmtrain/nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kColumns = 24;

struct Rows {
  uint64_t seed;
  int64_t count;
};

/// What is left of ones, in rows of these units.
at::Tensor drop(const std::vector<Rows>& units, uint64_t layer = 1, double probability = 0.3) {
  std::vector<DropoutUnit> shares;
  int64_t rows = 0;
  for (const Rows& unit : units) {
    shares.push_back({.seed = unit.seed, .share = unit.count});
    rows += unit.count;
  }
  const DropoutScope scope(shares);
  return unit_dropout(at::ones({rows, kColumns}), probability, layer);
}

TEST(Dropout, OfAUnitDoesNotDependOnTheOthers) {
  const at::Tensor together = drop({{11, 5}, {12, 8}, {13, 3}});
  EXPECT_TRUE(at::equal(together.narrow(0, 0, 5), drop({{11, 5}})));
  EXPECT_TRUE(at::equal(together.narrow(0, 5, 8), drop({{12, 8}})));
  EXPECT_TRUE(at::equal(together.narrow(0, 5, 11), drop({{12, 8}, {13, 3}})));
}

TEST(Dropout, DoesNotDependOnWhatElseIsDrawn) {
  const at::Tensor first = drop({{11, 5}});
  at::rand({3});
  EXPECT_TRUE(at::equal(drop({{11, 5}}), first));
}

TEST(Dropout, LeavesTheDefaultGeneratorAlone) {
  at::manual_seed(3);
  const at::Tensor wanted = at::rand({3});
  at::manual_seed(3);
  drop({{11, 5}});
  EXPECT_TRUE(at::equal(at::rand({3}), wanted));
}

TEST(Dropout, DiffersWithSeedAndLayer) {
  const at::Tensor one = drop({{11, 5}});
  EXPECT_FALSE(at::equal(drop({{12, 5}}), one));
  EXPECT_FALSE(at::equal(drop({{11, 5}}, /*layer=*/2), one));
}

TEST(Dropout, DropsTheAskedShareAndScalesTheRest) {
  constexpr double kShare = 0.1;
  const at::Tensor left = drop({{1, 1000}, {2, 500}, {3, 1500}}, 1, kShare);
  EXPECT_EQ(left.ne(0).mul(1 / (1 - kShare)).sub(left).abs().max().item<float>(), 0);
  // Five standard deviations of the mean of that many draws.
  const double tolerance = 5 * std::sqrt(kShare * (1 - kShare) / static_cast<double>(left.numel()));
  EXPECT_NEAR(left.eq(0).to(at::kDouble).mean().item<double>(), kShare, tolerance);
}

TEST(Dropout, GradientIsDroppedInTheSamePlaces) {
  const DropoutScope scope(std::vector<DropoutUnit>{{.seed = 4}});
  const at::Tensor x = at::ones({6, kColumns}).set_requires_grad(true);
  const at::Tensor y = unit_dropout(x, 0.3, 1);
  EXPECT_TRUE(at::equal(torch::autograd::grad({y.sum()}, {x})[0], y));
}

TEST(Dropout, SharesAreInProportion) {
  const DropoutScope scope(std::vector<DropoutUnit>{{.seed = 1, .share = 4}, {.seed = 2, .share = 8}});
  const at::Tensor y = unit_dropout(at::ones({3, kColumns}), 0.3, 1);
  EXPECT_TRUE(at::equal(y.narrow(0, 0, 1), drop({{1, 1}})));
  EXPECT_TRUE(at::equal(y.narrow(0, 1, 2), drop({{2, 2}})));
  EXPECT_THROW(unit_dropout(at::ones({4, kColumns}), 0.3, 1), InternalError);
}

TEST(DropoutScope, InnerOneEndsWhereItBegan) {
  const DropoutScope outer(std::vector<DropoutUnit>{{.seed = 1}});
  const auto units = DropoutScope::current();
  {
    const DropoutScope inner(std::vector<DropoutUnit>{{.seed = 2}});
    EXPECT_EQ(DropoutScope::current()->front().seed, 2U);
  }
  EXPECT_EQ(DropoutScope::current(), units);
}

}  // namespace
}  // namespace vlmtrain::nn
