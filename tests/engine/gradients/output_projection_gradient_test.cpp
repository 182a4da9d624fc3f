// The gradient of the output projection, which linear_cross_entropy() adds to its sum.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "parity/deviations.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/gradients/rank_sync.h"
#include "vlmtrain/nn/layers/losses.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {
namespace {

constexpr int64_t kVocabulary = 40, kHiddenSize = 16, kRows = 30, kChunkRows = 8;
constexpr double kNormalizer = 2 * kRows;
constexpr int kMicroBatches = 2;

/// An output projection that may also be the embedding.
class TokenModel {
 public:
  TokenModel(at::ScalarType dtype, bool is_tied) : store_({at::TensorOptions(dtype)}), is_tied_(is_tied) {
    const nn::ParameterScope scope(store_, nn::Component::kLanguageModel, "head");
    weight_ = scope.add_parameter("weight", {kVocabulary, kHiddenSize}, nn::InitialValues::zeros());
    at::manual_seed(3);
    weight_.detach().copy_(at::randn(weight_.sizes()));
  }

  nn::ParameterStore& store() { return store_; }
  const at::Tensor& weight() const { return weight_; }

  /// Returns the loss of a micro-batch for a weight of any dtype, whose values are those of weight().
  at::Tensor compute_loss(int seed, const at::Tensor& weight, bool is_reference) const {
    at::manual_seed(seed);
    const at::Tensor tokens = at::randint(kVocabulary, {kRows}, at::kLong);
    const at::Tensor labels = at::randint(kVocabulary, {kRows}, at::kLong);
    const at::Tensor hidden = is_tied_
                                  ? at::embedding(weight, tokens)
                                  : at::randn({kRows, kHiddenSize}).to(weight_.scalar_type()).to(weight.scalar_type());
    if (!is_reference) return nn::linear_cross_entropy(hidden, {weight}, labels, kNormalizer, kChunkRows);
    return at::cross_entropy_loss(hidden.matmul(weight.t()), labels, {}, at::Reduction::Sum) / kNormalizer;
  }

 private:
  nn::ParameterStore store_;
  bool is_tied_;
  at::Tensor weight_;
};

struct ProjectionCase {
  at::ScalarType dtype;
  bool is_tied;
  double tolerance;
};

class OutputProjectionGradient : public testing::TestWithParam<ProjectionCase> {};

TEST_P(OutputProjectionGradient, MatchesFp64) {
  TokenModel model(GetParam().dtype, GetParam().is_tied);
  const at::Tensor exact = model.weight().detach().to(at::kDouble).set_requires_grad(true);
  for (int i = 0; i < kMicroBatches; ++i) model.compute_loss(i, exact, /*is_reference=*/true).backward();

  GradientBuckets buckets(model.store());
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < kMicroBatches; ++i) {
      const at::Tensor loss = model.compute_loss(i, model.weight(), /*is_reference=*/false);
      EXPECT_EQ(buckets.has_gradient(0), GetParam().dtype != at::kHalf || i > 0) << "before the backward pass";
      loss.backward();
    }
    EXPECT_LT(parity::relative_difference(buckets.sum(0), exact.grad()), GetParam().tolerance);
    buckets.reset();
  }
}

TEST_P(OutputProjectionGradient, IsReducedInTheLastPass) {
  TokenModel model(GetParam().dtype, GetParam().is_tied);
  GradientBuckets buckets(model.store());
  GradientReducer reducer(buckets);
  int64_t reduced_elements = 0;
  reducer.register_comm_hook([&](const at::Tensor& bucket) { reduced_elements += bucket.numel(); });
  model.compute_loss(0, model.weight(), /*is_reference=*/false).backward();
  EXPECT_EQ(reduced_elements, 0);
  reducer.begin_last_micro_batch();
  model.compute_loss(1, model.weight(), /*is_reference=*/false).backward();
  EXPECT_EQ(reduced_elements, kVocabulary * kHiddenSize);
  reducer.flush();
}

// 16 bits: logits, their gradients and the products on the CPU are rounded to 8 or 11 bits.
INSTANTIATE_TEST_SUITE_P(Cases, OutputProjectionGradient,
                         testing::Values(ProjectionCase{at::kFloat, false, 1e-6},
                                         ProjectionCase{at::kFloat, true, 1e-6},
                                         ProjectionCase{at::kBFloat16, false, 0x1p-7},
                                         ProjectionCase{at::kBFloat16, true, 0x1p-7},
                                         ProjectionCase{at::kHalf, false, 0x1p-10}));

TEST(OutputProjectionGradientSum, AcceptsNoFactorOfTheLoss) {
  TokenModel model(at::kBFloat16, /*is_tied=*/false);
  const GradientBuckets buckets(model.store());
  const at::Tensor loss = model.compute_loss(0, model.weight(), /*is_reference=*/false);
  EXPECT_THROW(loss.backward(at::full({}, 2.0)), InternalError);
}

}  // namespace
}  // namespace vlmtrain::engine
