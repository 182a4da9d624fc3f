#include "vlmtrain/engine/gradnorm.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

#include "engine/task_sums.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

at::Tensor to_matrix(const nlohmann::json& json) {
  std::vector<double> values;
  for (const auto& row : json) {
    for (const auto& value : row) values.push_back(value.get<double>());
  }
  return at::tensor(values, at::kFloat).view({std::ssize(json), -1});
}

TaskResult make_result(double loss, double norm, int64_t label_tokens = 1) {
  return {.counts = {.samples = 1, .label_tokens = label_tokens}, .loss = loss, .gradient_norm = norm};
}

/// From hidden states to weights, against autograd in fp64 (tests/engine/data/make_gradnorm.py).
TEST(GradNorm, MatchesThePaperByAutograd) {
  std::ifstream file(VLMTRAIN_SOURCE_DIR "/tests/engine/data/gradnorm.json");
  const auto reference = nlohmann::json::parse(file);
  const auto tasks = reference["tasks"].get<int64_t>();
  const at::Tensor output = to_matrix(reference["output"]);
  GradNorm gradnorm(tasks, {.alpha = reference["alpha"], .learning_rate = reference["learning_rate"]});
  ASSERT_EQ(reference["steps"].size(), 5U);
  for (const auto& step : reference["steps"]) {
    const std::vector<double> weights = gradnorm.weights();
    const PerTaskSums sums({.count = tasks, .weights = weights, .gradient_norms = true}, output.size(1), at::kCPU);
    const auto label_tasks = step["tasks"].get<std::vector<int64_t>>();
    nn::linear_cross_entropy(to_matrix(step["hidden"]), output,
                             at::tensor(step["labels"].get<std::vector<int64_t>>(), at::kLong),
                             static_cast<double>(label_tasks.size()), /*chunk_rows=*/2,
                             sums.make_loss_args(at::tensor(label_tasks, at::kLong)));
    std::vector<TaskCounts> counts(static_cast<size_t>(tasks));
    for (const int64_t task : label_tasks) ++counts[static_cast<size_t>(task)].label_tokens;
    const at::Tensor scalars = sums.scalars().to(at::kDouble);
    const auto results =
        make_task_results({scalars.const_data_ptr<double>(), static_cast<size_t>(scalars.numel())}, counts);
    for (size_t task = 0, i = 0; task < counts.size(); ++task) {
      if (counts[task].label_tokens == 0) continue;
      EXPECT_NEAR(results[task].gradient_norm, step["norms"][i++].get<double>(), 1e-6);
    }
    gradnorm.update(results, weights);
    const auto expected = step["weights_after"].get<std::vector<double>>();
    for (size_t task = 0; task < expected.size(); ++task) EXPECT_NEAR(gradnorm.weights()[task], expected[task], 1e-5);
  }
}

/// Norms 3 and 1 with equal losses: the mean is 2, so weight 0 falls by 0.1 · 3 and weight 1 rises by 0.1 · 1, to 0.7
/// and 1.1, which add up to 1.8 and are scaled to 2.
TEST(GradNorm, MatchesHandComputedStep) {
  GradNorm gradnorm(2, {.alpha = 1.5, .learning_rate = 0.1});
  gradnorm.update({make_result(2, 3), make_result(5, 1)}, {1, 1});
  EXPECT_THAT(gradnorm.weights(), ElementsAre(DoubleEq(0.7 * 2 / 1.8), DoubleEq(1.1 * 2 / 1.8)));
  EXPECT_EQ(gradnorm.state().first_losses[0], 2);
}

/// Task 1 has lost half its loss, task 0 nothing: r is 4/3 and 2/3, so with equal norms task 0 gains weight.
TEST(GradNorm, ATaskThatLagsBehindGainsWeight) {
  GradNorm gradnorm(2, {.alpha = 1.0, .learning_rate = 0.1});
  gradnorm.update({make_result(2, 1), make_result(4, 1)}, {1, 1});
  EXPECT_THAT(gradnorm.weights(), ElementsAre(1, 1));
  gradnorm.update({make_result(2, 1), make_result(2, 1)}, {1, 1});
  EXPECT_THAT(gradnorm.weights(), ElementsAre(DoubleEq(1.1), DoubleEq(0.9)));
}

TEST(GradNorm, AbsentTasksKeepTheirWeightsAndOneTaskAloneChangesNothing) {
  GradNorm gradnorm(3, {.learning_rate = 0.1});
  gradnorm.update({make_result(2, 3), make_result(0, 0, 0), make_result(5, 1)}, {1, 1, 1});
  const auto weights = gradnorm.weights();
  EXPECT_EQ(weights[1], 1);
  EXPECT_LT(weights[0], 1);
  EXPECT_DOUBLE_EQ(weights[0] + weights[2], 2);
  EXPECT_FALSE(gradnorm.state().first_losses[1]);
  gradnorm.update({make_result(0, 0, 0), make_result(3, 9), make_result(0, 0, 0)}, weights);
  EXPECT_EQ(gradnorm.weights(), weights);
}

TEST(GradNorm, NoWeightReachesZero) {
  GradNorm gradnorm(2, {.learning_rate = 10});
  for (int i = 0; i < 5; ++i) gradnorm.update({make_result(2, 30), make_result(2, 1)}, gradnorm.weights());
  EXPECT_GT(gradnorm.weights()[0], 0);
  EXPECT_DOUBLE_EQ(gradnorm.weights()[0] + gradnorm.weights()[1], 2);
}

}  // namespace
}  // namespace vlmtrain::engine
