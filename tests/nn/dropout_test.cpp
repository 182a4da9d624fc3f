#include "vlmtrain/nn/layers/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kColumns = 24;

struct SegmentRows {
  uint64_t seed;
  int64_t count;
};

/// Returns the dropout of ones, in rows of these segments.
at::Tensor apply_dropout(const std::vector<SegmentRows>& segments, uint64_t layer = 1, double probability = 0.3) {
  std::vector<DropoutSegment> dropout_segments;
  int64_t rows = 0;
  for (const SegmentRows& segment : segments) {
    dropout_segments.push_back({.seed = segment.seed, .row_weight = segment.count});
    rows += segment.count;
  }
  const DropoutScope scope(dropout_segments);
  return segment_dropout(at::ones({rows, kColumns}), probability, layer);
}

TEST(Dropout, OfASegmentDoesNotDependOnTheOthers) {
  const at::Tensor together = apply_dropout({{11, 5}, {12, 8}, {13, 3}});
  EXPECT_TRUE(at::equal(together.narrow(0, 0, 5), apply_dropout({{11, 5}})));
  EXPECT_TRUE(at::equal(together.narrow(0, 5, 8), apply_dropout({{12, 8}})));
  EXPECT_TRUE(at::equal(together.narrow(0, 5, 11), apply_dropout({{12, 8}, {13, 3}})));
}

TEST(Dropout, DoesNotDependOnOtherRandomNumbers) {
  const at::Tensor first = apply_dropout({{11, 5}});
  at::rand({3});
  EXPECT_TRUE(at::equal(apply_dropout({{11, 5}}), first));
}

TEST(Dropout, LeavesTheDefaultGeneratorAlone) {
  at::manual_seed(3);
  const at::Tensor expected = at::rand({3});
  at::manual_seed(3);
  apply_dropout({{11, 5}});
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
}

TEST(Dropout, DiffersWithSeedAndLayer) {
  const at::Tensor first = apply_dropout({{11, 5}});
  EXPECT_FALSE(at::equal(apply_dropout({{12, 5}}), first));
  EXPECT_FALSE(at::equal(apply_dropout({{11, 5}}, /*layer=*/2), first));
}

TEST(Dropout, DropsTheGivenShareAndScalesTheRest) {
  constexpr double kShare = 0.1;
  const at::Tensor outputs = apply_dropout({{1, 1000}, {2, 500}, {3, 1500}}, 1, kShare);
  EXPECT_EQ(outputs.ne(0).mul(1 / (1 - kShare)).sub(outputs).abs().max().item<float>(), 0);
  // Five standard deviations of the mean of this many samples.
  const double tolerance = 5 * std::sqrt(kShare * (1 - kShare) / static_cast<double>(outputs.numel()));
  EXPECT_NEAR(outputs.eq(0).to(at::kDouble).mean().item<double>(), kShare, tolerance);
}

TEST(Dropout, GradientIsDroppedInTheSamePlaces) {
  const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 4}});
  const at::Tensor x = at::ones({6, kColumns}).set_requires_grad(true);
  const at::Tensor y = segment_dropout(x, 0.3, 1);
  EXPECT_TRUE(at::equal(torch::autograd::grad({y.sum()}, {x})[0], y));
}

TEST(Dropout, RowSharesAreProportional) {
  const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 1, .row_weight = 4}, {.seed = 2, .row_weight = 8}});
  const at::Tensor y = segment_dropout(at::ones({3, kColumns}), 0.3, 1);
  EXPECT_TRUE(at::equal(y.narrow(0, 0, 1), apply_dropout({{1, 1}})));
  EXPECT_TRUE(at::equal(y.narrow(0, 1, 2), apply_dropout({{2, 2}})));
  EXPECT_THROW(segment_dropout(at::ones({4, kColumns}), 0.3, 1), InternalError);
}

class IndependentDropoutsTest : public testing::Test {
 protected:
  static constexpr int64_t kConsumers = 3;
  static constexpr double kProbability = 0.3;

  static IndependentDropouts make_dropouts(const at::Tensor& x, int64_t consumers = kConsumers) {
    return {x, consumers, kProbability, /*layer=*/1};
  }

  /// Returns the dropouts of ones, [consumers, rows, columns].
  static at::Tensor drop_ones(const std::vector<DropoutSegment>& segments, int64_t consumers = kConsumers) {
    int64_t rows = 0;
    for (const DropoutSegment& segment : segments) rows += segment.row_weight;
    const DropoutScope scope(segments);
    const at::Tensor ones = at::ones({rows, kColumns});
    return at::stack(apply_all(make_dropouts(ones, consumers), ones));
  }

  static std::vector<at::Tensor> apply_all(const IndependentDropouts& dropout, const at::Tensor& x) {
    std::vector<at::Tensor> all;
    dropout.apply(x, [&](int64_t consumer, const at::Tensor& output) {
      EXPECT_EQ(consumer, std::ssize(all));
      all.push_back(output);
    });
    return all;
  }
};

TEST_F(IndependentDropoutsTest, DiffersBetweenConsumers) {
  const at::Tensor outputs = drop_ones({{.seed = 11, .row_weight = 5}, {.seed = 12, .row_weight = 8}});
  ASSERT_EQ(outputs.sizes(), at::IntArrayRef({kConsumers, 13, kColumns}));
  for (int64_t i = 0; i < kConsumers; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(outputs[i], outputs[j])) << i << ", " << j;
  }
}

/// Two independent masks agree in a fraction 0.7² + 0.3² of the elements.
TEST_F(IndependentDropoutsTest, IsIndependentBetweenConsumers) {
  const at::Tensor outputs = drop_ones({{.seed = 11, .row_weight = 700}, {.seed = 12, .row_weight = 900}});
  for (int64_t i = 0; i < kConsumers; ++i) {
    const at::Tensor agree = outputs[i].eq(outputs[(i + 1) % kConsumers]).to(at::kDouble);
    const double tolerance = 5 * std::sqrt(0.58 * 0.42 / static_cast<double>(agree.numel()));
    EXPECT_NEAR(agree.mean().item<double>(), 0.58, tolerance) << i;
  }
}

TEST_F(IndependentDropoutsTest, OfASegmentDoesNotDependOnTheOthers) {
  const DropoutSegment a{.seed = 11, .row_weight = 5}, b{.seed = 12, .row_weight = 8}, c{.seed = 13, .row_weight = 3};
  const at::Tensor together = drop_ones({a, b, c});
  EXPECT_TRUE(at::equal(together.narrow(1, 0, 5), drop_ones({a})));
  EXPECT_TRUE(at::equal(together.narrow(1, 5, 8), drop_ones({b})));
  EXPECT_TRUE(at::equal(together.narrow(1, 5, 11), drop_ones({b, c})));
}

TEST_F(IndependentDropoutsTest, OfOneConsumerIsSegmentDropout) {
  EXPECT_TRUE(at::equal(drop_ones({{.seed = 11, .row_weight = 5}}, 1)[0], apply_dropout({{11, 5}})));
}

/// Masks are recomputed where kernels can, else stored in memory that may be released between the
/// passes.
TEST_F(IndependentDropoutsTest, RepeatsWithTheSameMasks) {
  const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 4}});
  const at::Tensor x = at::randn({6, kColumns});
  IndependentDropouts dropout = make_dropouts(x);
  const auto expected = apply_all(dropout, x);
  const bool regenerates = dropout.regenerates_masks();
  EXPECT_EQ(regenerates, kernels::is_available(kernels::Kernel::kDropout, x));
  const at::Tensor masks = dropout.take_masks();
  EXPECT_EQ(masks.defined(), !regenerates);
  IndependentDropouts restored = dropout;
  restored.set_masks(masks);
  const auto actual = apply_all(restored, x);
  ASSERT_EQ(actual.size(), size_t{kConsumers});
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

TEST_F(IndependentDropoutsTest, GradientsAreDroppedInTheSamePlacesAndAdded) {
  const DropoutScope scope(std::vector<DropoutSegment>{{.seed = 4}});
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-6 : 2e-2;
    const at::Tensor x = at::randn({6, kColumns}).to(dtype),
                     consumer_gradients = at::randn({kConsumers, 6, kColumns}).to(dtype);
    const IndependentDropouts dropout = make_dropouts(x);
    at::Tensor expected = x.clone().to(at::kDouble);
    dropout.apply(at::ones_like(x), [&](int64_t consumer, const at::Tensor& outputs) {
      expected += consumer_gradients[consumer].to(at::kDouble) * outputs.ne(0) / (1 - kProbability);
    });
    const at::Tensor sum = x.clone();
    dropout.add_consumer_gradients(sum, [&](int64_t consumer, const at::Tensor& out) {
      return out.defined() ? at::Tensor(out).copy_(consumer_gradients[consumer]) : consumer_gradients[consumer];
    });
    EXPECT_EQ(sum.scalar_type(), dtype);
    EXPECT_TRUE(at::allclose(sum.to(at::kDouble), expected, tolerance, tolerance)) << dtype;
  }
}

TEST(DropoutScope, InnerScopeRestoresTheOuterOne) {
  const DropoutScope outer(std::vector<DropoutSegment>{{.seed = 1}});
  const auto segments = DropoutScope::current();
  {
    const DropoutScope inner(std::vector<DropoutSegment>{{.seed = 2}});
    EXPECT_EQ(DropoutScope::current()->front().seed, 2U);
  }
  EXPECT_EQ(DropoutScope::current(), segments);
}

}  // namespace
}  // namespace vlmtrain::nn
