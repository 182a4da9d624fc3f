#include "vlmtrain/nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"

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

class OfReaders : public testing::Test {
 protected:
  static constexpr int64_t kReaders = 3;
  static constexpr double kProbability = 0.3;

  static ReadersDropout draw(const at::Tensor& x, int64_t readers = kReaders) {
    return {x, readers, kProbability, /*layer=*/1};
  }

  /// What is left of ones, [readers, rows, columns].
  static at::Tensor left_of_ones(const std::vector<DropoutUnit>& units, int64_t readers = kReaders) {
    int64_t rows = 0;
    for (const DropoutUnit& unit : units) rows += unit.share;
    const DropoutScope scope(units);
    const at::Tensor ones = at::ones({rows, kColumns});
    return at::stack(dropped(draw(ones, readers), ones));
  }

  static std::vector<at::Tensor> dropped(const ReadersDropout& dropout, const at::Tensor& x) {
    std::vector<at::Tensor> all;
    dropout.drop(x, [&](int64_t reader, const at::Tensor& of_reader) {
      EXPECT_EQ(reader, std::ssize(all));
      all.push_back(of_reader);
    });
    return all;
  }
};

TEST_F(OfReaders, DiffersFromReaderToReader) {
  const at::Tensor left = left_of_ones({{.seed = 11, .share = 5}, {.seed = 12, .share = 8}});
  ASSERT_EQ(left.sizes(), at::IntArrayRef({kReaders, 13, kColumns}));
  for (int64_t i = 0; i < kReaders; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(left[i], left[j])) << i << ", " << j;
  }
}

/// Two independent ones agree in a share of 0.7² + 0.3² of the elements.
TEST_F(OfReaders, AgreesAsOftenAsIndependentOnesDo) {
  const at::Tensor left = left_of_ones({{.seed = 11, .share = 700}, {.seed = 12, .share = 900}});
  for (int64_t i = 0; i < kReaders; ++i) {
    const at::Tensor agree = left[i].eq(left[(i + 1) % kReaders]).to(at::kDouble);
    const double tolerance = 5 * std::sqrt(0.58 * 0.42 / static_cast<double>(agree.numel()));
    EXPECT_NEAR(agree.mean().item<double>(), 0.58, tolerance) << i;
  }
}

TEST_F(OfReaders, OfAUnitDoesNotDependOnTheOthers) {
  const DropoutUnit a{.seed = 11, .share = 5}, b{.seed = 12, .share = 8}, c{.seed = 13, .share = 3};
  const at::Tensor together = left_of_ones({a, b, c});
  EXPECT_TRUE(at::equal(together.narrow(1, 0, 5), left_of_ones({a})));
  EXPECT_TRUE(at::equal(together.narrow(1, 5, 8), left_of_ones({b})));
  EXPECT_TRUE(at::equal(together.narrow(1, 5, 11), left_of_ones({b, c})));
}

TEST_F(OfReaders, OfOneReaderIsUnitDropout) {
  EXPECT_TRUE(at::equal(left_of_ones({{.seed = 11, .share = 5}}, 1)[0], drop({{11, 5}})));
}

/// What is kept is drawn again where kernels can, and else is memory that may be taken away meanwhile.
TEST_F(OfReaders, GivesTheSameAgainWithTheMasksThatItGave) {
  const DropoutScope scope(std::vector<DropoutUnit>{{.seed = 4}});
  const at::Tensor x = at::randn({6, kColumns});
  ReadersDropout dropout = draw(x);
  const auto wanted = dropped(dropout, x);
  const bool again = dropout.draws_again();
  EXPECT_EQ(again, kernels::has(kernels::Kernel::kDropout, x));
  const at::Tensor masks = dropout.take_masks();
  EXPECT_EQ(masks.defined(), !again);
  ReadersDropout other = dropout;
  other.give_masks(masks);
  const auto found = dropped(other, x);
  ASSERT_EQ(found.size(), size_t{kReaders});
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], wanted[i])) << i;
}

TEST_F(OfReaders, GradientsAreDroppedInTheSamePlacesAndAdded) {
  const DropoutScope scope(std::vector<DropoutUnit>{{.seed = 4}});
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-6 : 2e-2;
    const at::Tensor x = at::randn({6, kColumns}).to(dtype), of_readers = at::randn({kReaders, 6, kColumns}).to(dtype);
    const ReadersDropout dropout = draw(x);
    at::Tensor wanted = x.clone().to(at::kDouble);
    dropout.drop(at::ones_like(x), [&](int64_t reader, const at::Tensor& left) {
      wanted += of_readers[reader].to(at::kDouble) * left.ne(0) / (1 - kProbability);
    });
    const at::Tensor sum = x.clone();
    dropout.add_gradients(sum, [&](int64_t reader, const at::Tensor& place) {
      return place.defined() ? at::Tensor(place).copy_(of_readers[reader]) : of_readers[reader];
    });
    EXPECT_EQ(sum.scalar_type(), dtype);
    EXPECT_TRUE(at::allclose(sum.to(at::kDouble), wanted, tolerance, tolerance)) << dtype;
  }
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
