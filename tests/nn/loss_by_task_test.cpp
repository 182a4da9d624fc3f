#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "parity/deviations.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::nn {
namespace {

constexpr int64_t kLabels = 13;
constexpr int64_t kTasks = 3;
constexpr double kNormalizer = 40.0;

using parity::relative_difference;

class PerTaskLossTest : public testing::TestWithParam<int64_t> {
 protected:
  PerTaskLossTest() {
    at::manual_seed(1);
    hidden_ = at::randn({kLabels, 8}).set_requires_grad(true);
    weight_ = at::randn({31, 8}).set_requires_grad(true);
    labels_ = at::randint(31, {kLabels}, at::kLong);
    // Some labels are the most likely token.
    labels_.narrow(0, 0, 5).copy_(at::matmul(hidden_, weight_.t()).detach().argmax(1).narrow(0, 0, 5));
    tasks_ = at::tensor({0, 2, 2, 0, 1, 2, 0, 1, 2, 2, 0, 0, 2}, at::kLong);
    row_weights_ = at::tensor({0.5, 2.0, 1.25}, at::kFloat).index_select(0, tasks_);
  }

  PerTaskLoss make_per_task_loss(bool is_weighted, bool has_scale_gradients) const {
    return {.task_one_hot = tasks_.eq(at::tensor({0, 1, 2}, at::kLong).unsqueeze(1)).to(at::kFloat),
            .weights = is_weighted ? row_weights_ : at::Tensor(),
            .sums = at::zeros({kTasks, 2}),
            .scale_gradients = has_scale_gradients ? at::zeros({kTasks, 8}) : at::Tensor()};
  }

  /// By the plain formula, [rows].
  at::Tensor cross_entropy(const at::Tensor& hidden) const {
    const at::Tensor likelihoods = at::log_softmax(at::matmul(hidden, weight_.t()), 1);
    return -likelihoods.gather(1, labels_.unsqueeze(1)).squeeze(1);
  }

  at::Tensor hidden_, weight_, labels_, tasks_, row_weights_;
};

TEST_P(PerTaskLossTest, WeightsEachRow) {
  const auto actual =
      linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), make_per_task_loss(true, true));
  const auto expected = (cross_entropy(hidden_) * row_weights_).sum() / kNormalizer;
  EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-6);
  const auto actual_gradients = torch::autograd::grad({actual * 3}, {hidden_, weight_});
  const auto expected_gradients = torch::autograd::grad({expected * 3}, {hidden_, weight_});
  EXPECT_LT(relative_difference(actual_gradients[0], expected_gradients[0]), 1e-6);
  EXPECT_LT(relative_difference(actual_gradients[1], expected_gradients[1]), 1e-6);
}

TEST_P(PerTaskLossTest, SumsPerTask) {
  const auto tasks = make_per_task_loss(true, false);
  linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), tasks);
  const auto entropies = cross_entropy(hidden_);
  const auto is_right = at::matmul(hidden_, weight_.t()).argmax(1).eq(labels_).to(at::kFloat);
  ASSERT_GE(is_right.sum().item<double>(), 5);
  for (int64_t task = 0; task < kTasks; ++task) {
    const auto members = tasks.task_one_hot.select(0, task);
    EXPECT_NEAR(tasks.sums.select(0, task).select(0, 0).item<double>(), (entropies * members).sum().item<double>(),
                1e-5);
    EXPECT_EQ(tasks.sums.select(0, task).select(0, 1).item<double>(), (is_right * members).sum().item<double>());
  }
  const auto sums_after_first_call = tasks.sums.clone();
  linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), tasks);
  EXPECT_LT(relative_difference(tasks.sums, sums_after_first_call * 2), 1e-6) << "sums of a second call are added";
}

/// With frozen hidden states too, for that is what they are where only the vision tower is trained and a batch has no
/// images.
TEST_P(PerTaskLossTest, GivesScaleGradientsPerTask) {
  for (const bool is_weighted : {false, true}) {
    for (const bool is_trained : {false, true}) {
      const auto tasks = make_per_task_loss(is_weighted, true);
      const auto loss = linear_cross_entropy(is_trained ? hidden_ : hidden_.detach(), weight_.detach(), labels_,
                                             kNormalizer, GetParam(), tasks);
      EXPECT_EQ(loss.requires_grad(), is_trained);
      const auto scale = at::ones({8}).set_requires_grad(true);
      auto losses = cross_entropy(hidden_.detach() * scale) / kNormalizer;
      if (is_weighted) losses = losses * row_weights_;
      for (int64_t task = 0; task < kTasks; ++task) {
        const auto expected = torch::autograd::grad({(losses * tasks.task_one_hot.select(0, task)).sum()}, {scale}, {},
                                                    /*retain_graph=*/true);
        EXPECT_LT(relative_difference(tasks.scale_gradients.select(0, task), expected[0]), 2e-6);
      }
    }
  }
}

TEST_P(PerTaskLossTest, PerTaskSumsDoNotChangeTheLoss) {
  const auto plain = linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam());
  const auto with_sums =
      linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), make_per_task_loss(false, false));
  EXPECT_EQ(with_sums.item<double>(), plain.item<double>());
  const auto expected = torch::autograd::grad({plain}, {hidden_, weight_});
  const auto actual = torch::autograd::grad({with_sums}, {hidden_, weight_});
  EXPECT_TRUE(at::equal(actual[0], expected[0]));
  EXPECT_TRUE(at::equal(actual[1], expected[1]));
}

INSTANTIATE_TEST_SUITE_P(ChunkRows, PerTaskLossTest, testing::Values(1, 4, 13, 100));

}  // namespace
}  // namespace vlmtrain::nn
