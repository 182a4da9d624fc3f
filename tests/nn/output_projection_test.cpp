#include "vlmtrain/nn/layers/output_projection.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>

#include "parity/deviations.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::nn {

namespace {

using parity::relative_difference;

/// Parameters: the cap and the rows of a chunk. The logits have a standard deviation of 2.8.
class FusedLossWithSoftCap : public testing::TestWithParam<std::tuple<double, int64_t>> {
 protected:
  FusedLossWithSoftCap() { at::manual_seed(1); }

  /// Returns the logits by their formula, in the precision of `hidden` and with gradients.
  at::Tensor compute_expected_logits(const at::Tensor& hidden, const at::Tensor& weight) const {
    return at::tanh(at::matmul(hidden, weight.t()) / cap_) * cap_;
  }

  /// Returns the cross-entropy by its formula, [labels].
  at::Tensor compute_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight) const {
    return -at::log_softmax(compute_expected_logits(hidden, weight), 1).gather(1, labels_.unsqueeze(1)).squeeze(1);
  }

  PerTaskLoss make_per_task_loss() const {
    return {.task_one_hot = tasks_.eq(at::arange(2, at::kLong).unsqueeze(1)).to(at::kFloat),
            .weights = task_weights_,
            .sums = at::zeros({2, 2}),
            .feature_scale_gradients = at::zeros({2, kFeatures})};
  }

  static constexpr int64_t kLabels = 13, kFeatures = 8, kVocabulary = 31;
  static constexpr double kNormalizer = 40;

  const double cap_ = std::get<0>(GetParam());
  const int64_t chunk_rows_ = std::get<1>(GetParam());
  at::Tensor hidden_ = at::randn({kLabels, kFeatures}).set_requires_grad(true);
  at::Tensor weight_ = at::randn({kVocabulary, kFeatures}).set_requires_grad(true);
  at::Tensor labels_ = at::randint(kVocabulary, {kLabels}, at::kLong);
  at::Tensor tasks_ = at::randint(2, {kLabels}, at::kLong);
  at::Tensor task_weights_ = at::rand({kLabels}) + 0.5, label_weights_ = at::rand({kLabels});
  // In fp64, for the expected values.
  at::Tensor exact_hidden_ = hidden_.detach().to(at::kDouble).set_requires_grad(true);
  at::Tensor exact_weight_ = weight_.detach().to(at::kDouble).set_requires_grad(true);
};

TEST_P(FusedLossWithSoftCap, MatchesAutograd) {
  const at::Tensor actual = linear_cross_entropy(hidden_, {weight_, cap_}, labels_, kNormalizer, chunk_rows_);
  const at::Tensor expected = compute_cross_entropy(exact_hidden_, exact_weight_).sum() / kNormalizer;
  EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-6 * expected.item<double>());
  const auto actual_gradients = torch::autograd::grad({actual * 3}, {hidden_, weight_});
  const auto expected_gradients = torch::autograd::grad({expected * 3}, {exact_hidden_, exact_weight_});
  for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_difference(actual_gradients[i], expected_gradients[i]), 2e-6);
}

TEST_P(FusedLossWithSoftCap, MatchesAutogradWithWeightsOfTasksAndLabels) {
  const PerTaskLoss tasks = make_per_task_loss();
  const at::Tensor actual =
      linear_cross_entropy(hidden_, {weight_, cap_}, labels_, kNormalizer, chunk_rows_, tasks, label_weights_);
  const at::Tensor scale = at::ones({kFeatures}, at::kDouble).set_requires_grad(true);
  const at::Tensor losses = compute_cross_entropy(exact_hidden_ * scale, exact_weight_) * label_weights_;
  const at::Tensor expected = (losses * task_weights_).sum() / kNormalizer;
  EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-6 * expected.item<double>());
  const auto actual_gradients = torch::autograd::grad({actual}, {hidden_, weight_});
  const auto expected_gradients =
      torch::autograd::grad({expected}, {exact_hidden_, exact_weight_}, {}, /*retain_graph=*/true);
  for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_difference(actual_gradients[i], expected_gradients[i]), 2e-6);

  const at::Tensor is_correct = compute_expected_logits(exact_hidden_, exact_weight_).argmax(1).eq(labels_);
  for (int64_t task = 0; task < 2; ++task) {
    const at::Tensor members = tasks.task_one_hot.select(0, task);
    EXPECT_NEAR(tasks.sums[task][0].item<double>(), (losses * members).sum().item<double>(), 2e-5);
    EXPECT_EQ(tasks.sums[task][1].item<double>(), (is_correct * members).sum().item<double>());
    const auto scale_gradient = torch::autograd::grad({(losses * task_weights_ * members).sum() / kNormalizer}, {scale},
                                                      {}, /*retain_graph=*/true);
    EXPECT_LT(relative_difference(tasks.feature_scale_gradients[task], scale_gradient[0]), 5e-6);
  }
}

TEST_P(FusedLossWithSoftCap, LossWithoutGradientsIsTheSame) {
  const at::Tensor actual =
      linear_cross_entropy(hidden_.detach(), {weight_.detach(), cap_}, labels_, kNormalizer, chunk_rows_);
  EXPECT_FALSE(actual.requires_grad());
  EXPECT_EQ(actual.item<double>(),
            linear_cross_entropy(hidden_, {weight_, cap_}, labels_, kNormalizer, chunk_rows_).item<double>());
}

/// The difference is that of rounded logits and gradients. The inputs are exact in 16 bits.
TEST_P(FusedLossWithSoftCap, MatchesAutogradIn16Bits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor hidden = hidden_.detach().to(dtype).set_requires_grad(true),
                     weight = weight_.detach().to(dtype).set_requires_grad(true);
    const at::Tensor exact_hidden = hidden.detach().to(at::kDouble).set_requires_grad(true),
                     exact_weight = weight.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor actual = linear_cross_entropy(hidden, {weight, cap_}, labels_, kNormalizer, chunk_rows_);
    const at::Tensor expected = compute_cross_entropy(exact_hidden, exact_weight).sum() / kNormalizer;
    EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 3e-3 * expected.item<double>());
    const auto actual_gradients = torch::autograd::grad({actual}, {hidden, weight});
    const auto expected_gradients = torch::autograd::grad({expected}, {exact_hidden, exact_weight});
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(actual_gradients[i].scalar_type(), dtype);
      EXPECT_LT(relative_difference(actual_gradients[i].to(at::kDouble), expected_gradients[i]), 2e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(CapsAndChunkRows, FusedLossWithSoftCap,
                         testing::Combine(testing::Values(2.0, 30.0), testing::Values(1, 4, 13, 100)));

TEST(OutputProjection, ComputesLogitsInFp32) {
  at::manual_seed(1);
  constexpr double kCap = 2;
  const at::Tensor hidden = at::randn({20, 8}), weight = at::randn({31, 8});
  const at::Tensor plain = at::matmul(hidden.to(at::kDouble), weight.to(at::kDouble).t());
  EXPECT_LT(relative_difference(compute_logits(hidden, {weight}), plain), 1e-6);
  const at::Tensor capped = compute_logits(hidden, {weight, kCap});
  EXPECT_LT(relative_difference(capped, at::tanh(plain / kCap) * kCap), 1e-6);

  const at::Tensor short_hidden = hidden.to(at::kBFloat16), short_weight = weight.to(at::kBFloat16);
  const at::Tensor short_logits = compute_logits(short_hidden, {short_weight});
  EXPECT_EQ(short_logits.scalar_type(), at::kFloat);
  const at::Tensor expected = at::tanh(short_logits / kCap) * kCap;
  EXPECT_LT(relative_difference(compute_logits(short_hidden, {short_weight, kCap}), expected), 1e-6)
      << "rounded to bf16 after the cap";
}

}  // namespace

}  // namespace vlmtrain::nn
