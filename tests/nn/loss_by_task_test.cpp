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

class LossByTaskTest : public testing::TestWithParam<int64_t> {
 protected:
  LossByTaskTest() {
    at::manual_seed(1);
    hidden_ = at::randn({kLabels, 8}).set_requires_grad(true);
    weight_ = at::randn({31, 8}).set_requires_grad(true);
    labels_ = at::randint(31, {kLabels}, at::kLong);
    // Some labels are the most likely token.
    labels_.narrow(0, 0, 5).copy_(at::matmul(hidden_, weight_.t()).detach().argmax(1).narrow(0, 0, 5));
    tasks_ = at::tensor({0, 2, 2, 0, 1, 2, 0, 1, 2, 2, 0, 0, 2}, at::kLong);
    row_weights_ = at::tensor({0.5, 2.0, 1.25}, at::kFloat).index_select(0, tasks_);
  }

  LossByTask by_task(bool weighted, bool with_scale_gradients) const {
    return {.members = tasks_.eq(at::tensor({0, 1, 2}, at::kLong).unsqueeze(1)).to(at::kFloat),
            .weights = weighted ? row_weights_ : at::Tensor(),
            .sums = at::zeros({kTasks, 2}),
            .scale_gradients = with_scale_gradients ? at::zeros({kTasks, 8}) : at::Tensor()};
  }

  /// By the plain formula, [rows].
  at::Tensor cross_entropy(const at::Tensor& hidden) const {
    const at::Tensor likelihoods = at::log_softmax(at::matmul(hidden, weight_.t()), 1);
    return -likelihoods.gather(1, labels_.unsqueeze(1)).squeeze(1);
  }

  at::Tensor hidden_, weight_, labels_, tasks_, row_weights_;
};

TEST_P(LossByTaskTest, WeighsEachRow) {
  const auto found = linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), by_task(true, true));
  const auto wanted = (cross_entropy(hidden_) * row_weights_).sum() / kNormalizer;
  EXPECT_NEAR(found.item<double>(), wanted.item<double>(), 1e-6);
  const auto found_gradients = torch::autograd::grad({found * 3}, {hidden_, weight_});
  const auto wanted_gradients = torch::autograd::grad({wanted * 3}, {hidden_, weight_});
  EXPECT_LT(relative_difference(found_gradients[0], wanted_gradients[0]), 1e-6);
  EXPECT_LT(relative_difference(found_gradients[1], wanted_gradients[1]), 1e-6);
}

TEST_P(LossByTaskTest, SumsUpWhatEachTaskHas) {
  const auto tasks = by_task(true, false);
  linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), tasks);
  const auto entropies = cross_entropy(hidden_);
  const auto is_right = at::matmul(hidden_, weight_.t()).argmax(1).eq(labels_).to(at::kFloat);
  ASSERT_GE(is_right.sum().item<double>(), 5);
  for (int64_t task = 0; task < kTasks; ++task) {
    const auto members = tasks.members.select(0, task);
    EXPECT_NEAR(tasks.sums.select(0, task).select(0, 0).item<double>(), (entropies * members).sum().item<double>(),
                1e-5);
    EXPECT_EQ(tasks.sums.select(0, task).select(0, 1).item<double>(), (is_right * members).sum().item<double>());
  }
  const auto once = tasks.sums.clone();
  linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), tasks);
  EXPECT_LT(relative_difference(tasks.sums, once * 2), 1e-6) << "sums of a second call are added";
}

/// With frozen hidden states too, for that is what they are where only the vision tower is trained and a batch has no
/// images.
TEST_P(LossByTaskTest, GivesTheGradientOfAScaleByTask) {
  for (const bool weighted : {false, true}) {
    for (const bool trained : {false, true}) {
      const auto tasks = by_task(weighted, true);
      const auto loss = linear_cross_entropy(trained ? hidden_ : hidden_.detach(), weight_.detach(), labels_,
                                             kNormalizer, GetParam(), tasks);
      EXPECT_EQ(loss.requires_grad(), trained);
      const auto scale = at::ones({8}).set_requires_grad(true);
      auto shares = cross_entropy(hidden_.detach() * scale) / kNormalizer;
      if (weighted) shares = shares * row_weights_;
      for (int64_t task = 0; task < kTasks; ++task) {
        const auto wanted =
            torch::autograd::grad({(shares * tasks.members.select(0, task)).sum()}, {scale}, {}, /*retain_graph=*/true);
        EXPECT_LT(relative_difference(tasks.scale_gradients.select(0, task), wanted[0]), 2e-6);
      }
    }
  }
}

TEST_P(LossByTaskTest, LookingChangesNoBit) {
  const auto plain = linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam());
  const auto looked = linear_cross_entropy(hidden_, weight_, labels_, kNormalizer, GetParam(), by_task(false, false));
  EXPECT_EQ(looked.item<double>(), plain.item<double>());
  const auto wanted = torch::autograd::grad({plain}, {hidden_, weight_});
  const auto found = torch::autograd::grad({looked}, {hidden_, weight_});
  EXPECT_TRUE(at::equal(found[0], wanted[0]));
  EXPECT_TRUE(at::equal(found[1], wanted[1]));
}

INSTANTIATE_TEST_SUITE_P(ChunkRows, LossByTaskTest, testing::Values(1, 4, 13, 100));

}  // namespace
}  // namespace vlmtrain::nn
