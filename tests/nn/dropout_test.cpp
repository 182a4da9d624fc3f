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

class DropoutMasks : public testing::Test {
 protected:
  static constexpr int64_t kReaders = 3;

  static at::Tensor masks_of(const std::vector<DropoutUnit>& units, int64_t readers = kReaders) {
    int64_t rows = 0;
    for (const DropoutUnit& unit : units) rows += unit.share;
    const DropoutScope scope(units);
    return draw_dropout_masks(at::ones({rows, kColumns}), readers, 0.3, /*layer=*/1);
  }
};

TEST_F(DropoutMasks, DifferFromReaderToReader) {
  const at::Tensor masks = masks_of({{.seed = 11, .share = 5}, {.seed = 12, .share = 8}});
  ASSERT_EQ(masks.sizes(), at::IntArrayRef({kReaders, 13, kColumns}));
  for (int64_t i = 0; i < kReaders; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(masks[i], masks[j])) << i << ", " << j;
  }
}

/// Two independent ones agree in a share of 0.7² + 0.3² of the elements.
TEST_F(DropoutMasks, AgreeAsOftenAsIndependentOnesDo) {
  const at::Tensor masks = masks_of({{.seed = 11, .share = 700}, {.seed = 12, .share = 900}});
  for (int64_t i = 0; i < kReaders; ++i) {
    const at::Tensor agree = masks[i].eq(masks[(i + 1) % kReaders]).to(at::kDouble);
    const double tolerance = 5 * std::sqrt(0.58 * 0.42 / static_cast<double>(agree.numel()));
    EXPECT_NEAR(agree.mean().item<double>(), 0.58, tolerance) << i;
  }
}

TEST_F(DropoutMasks, OfAUnitDoNotDependOnTheOthers) {
  const DropoutUnit a{.seed = 11, .share = 5}, b{.seed = 12, .share = 8}, c{.seed = 13, .share = 3};
  const at::Tensor together = masks_of({a, b, c});
  EXPECT_TRUE(at::equal(together.narrow(1, 0, 5), masks_of({a})));
  EXPECT_TRUE(at::equal(together.narrow(1, 5, 8), masks_of({b})));
  EXPECT_TRUE(at::equal(together.narrow(1, 5, 11), masks_of({b, c})));
}

TEST_F(DropoutMasks, OfOneReaderAreWhatUnitDropoutKeeps) {
  EXPECT_TRUE(at::equal(masks_of({{.seed = 11, .share = 5}}, 1)[0], drop({{11, 5}}).ne(0)));
}

TEST_F(DropoutMasks, AreAddedAsTheyAreApplied) {
  const DropoutScope scope(std::vector<DropoutUnit>{{.seed = 4}});
  const at::Tensor x = at::randn({6, kColumns}, at::kDouble), y = at::randn({6, kColumns}, at::kDouble);
  const at::Tensor mask = draw_dropout_masks(x, 1, 0.3, /*layer=*/1)[0];
  const at::Tensor sum = y.clone();
  add_with_dropout_mask(sum, x, mask, 0.3);
  EXPECT_TRUE(at::allclose(sum, y + apply_dropout_mask(x, mask, 0.3), /*rtol=*/1e-14, /*atol=*/1e-14));
  // Of 16 bits, where ATen's types differ.
  const at::Tensor narrow_sum = y.to(at::kBFloat16);
  add_with_dropout_mask(narrow_sum, x.to(at::kBFloat16), mask, 0.3);
  EXPECT_EQ(narrow_sum.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(narrow_sum.to(at::kDouble), sum, /*rtol=*/2e-2, /*atol=*/2e-2));
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
