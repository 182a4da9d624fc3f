#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "vlmtrain/engine/loss/task_balance.h"

namespace vlmtrain::engine {
namespace {

using parity::has_zero_true_gradient;
using parity::relative_difference;

constexpr int64_t kTasks = 3;

/// Returns the batch of eight as three tasks in a row.
std::vector<data::Sample> make_task_samples() {
  auto samples = batch_of_eight();
  for (size_t i = 0; i < samples.size(); ++i) samples[i].task_index = static_cast<int64_t>(i * i) % kTasks;
  samples[7].task_index = 2;
  std::ranges::stable_sort(samples, {}, &data::Sample::task_index);
  return samples;
}

struct AccumulatedStep {
  StepResult result;
  std::map<std::string, at::Tensor> gradients;

  std::vector<TaskResult> tasks() const { return read_task_results(result); }
};

class TaskStepTest : public testing::Test {
 protected:
  AccumulatedStep accumulate(const std::vector<data::Sample>& samples, const SmallStep& step) const {
    const auto model = parity::Case("mixed_batch").load_model();
    AccumulatedStep accumulated{accumulate_gradients(*model, samples, step), {}};
    for (const auto& parameter : model->parameters().all())
      accumulated.gradients[parameter.name] = parameter.tensor.grad();
    return accumulated;
  }

  /// Returns the weights after a step with PCGrad.
  std::map<std::string, at::Tensor> train_pcgrad_step(const std::vector<int64_t>& micro_batches,
                                                      StepResult* result) const {
    const auto model = parity::Case("mixed_batch").load_model();
    // With such a large epsilon the update is proportional to the gradient.
    TrainingState training(*model, {.adamw = {.epsilon = 1e3}, .max_grad_norm = 0}, kTasks);
    TaskSettings tasks{.num_tasks = kTasks,
                       .weights = {0.5, 1, 2},
                       .measure_gradient_norms = true,
                       .resolve_gradient_conflicts = true};
    tasks.seed = 4;
    *result = run_optimizer_step(training, samples_, LearningRates{1e6, 1e6, 1e6},
                                 {.tasks = tasks, .micro_batches = micro_batches});
    std::map<std::string, at::Tensor> weights;
    for (const auto& parameter : model->parameters().all()) weights[parameter.name] = parameter.tensor.detach().clone();
    return weights;
  }

  const std::vector<data::Sample> samples_ = make_task_samples();
};

TEST_F(TaskStepTest, TheTasksAreUnequal) {
  const auto counts = count_samples_and_tokens(samples_, kTasks);
  EXPECT_EQ(counts[0].samples, 3);
  EXPECT_EQ(counts[1].samples, 4);
  EXPECT_EQ(counts[2].samples, 1);
  int64_t labels = 0;
  for (const auto& count : counts) labels += count.label_tokens;
  EXPECT_EQ(labels, accumulate(samples_, {.micro_batch_size = 8}).result.label_tokens);
}

TEST_F(TaskStepTest, LossesByTaskAddUpToTheLoss) {
  const auto accumulated = accumulate(samples_, {.micro_batch_size = 3, .tasks = {.num_tasks = kTasks}});
  const auto plain = accumulate(samples_, {.micro_batch_size = 3});
  EXPECT_EQ(accumulated.result.loss.item<double>(), plain.result.loss.item<double>());
  EXPECT_TRUE(plain.result.task_counts.empty());
  EXPECT_FALSE(plain.result.objective_scalars.defined());
  double sum = 0;
  for (const auto& task : accumulated.tasks()) {
    EXPECT_GE(task.accuracy, 0);
    EXPECT_LE(task.accuracy, 1);
    sum += task.loss * static_cast<double>(task.counts.label_tokens);
  }
  EXPECT_NEAR(accumulated.result.loss.item<double>(), sum / static_cast<double>(accumulated.result.label_tokens), 2e-6);
  for (const auto& [name, gradient] : plain.gradients)
    EXPECT_TRUE(at::equal(accumulated.gradients.at(name), gradient)) << name;
}

TEST_F(TaskStepTest, TheGradientIsTheWeightedSumOfTheTasks) {
  const std::vector<double> weights{0.5, 1.25, 2};
  const auto actual = accumulate(samples_, {.micro_batch_size = 8, .tasks = {.num_tasks = kTasks, .weights = weights}});
  std::map<std::string, at::Tensor> expected;
  double loss = 0;
  for (int64_t task = 0; task < kTasks; ++task) {
    std::vector<data::Sample> task_samples;
    std::ranges::copy_if(samples_, std::back_inserter(task_samples),
                         [task](const auto& s) { return s.task_index == task; });
    const auto task_alone = accumulate(task_samples, {.micro_batch_size = 8});
    const double share = weights[static_cast<size_t>(task)] * static_cast<double>(task_alone.result.label_tokens) /
                         static_cast<double>(actual.result.label_tokens);
    loss += share * task_alone.result.loss.item<double>();
    for (const auto& [name, gradient] : task_alone.gradients) {
      if (!gradient.defined()) continue;
      expected[name] = expected.contains(name) ? expected[name] + gradient * share : gradient * share;
    }
  }
  EXPECT_NEAR(actual.result.loss.item<double>(), loss, 2e-6);
  for (const auto& [name, gradient] : expected) {
    if (has_zero_true_gradient(name)) continue;
    EXPECT_LT(relative_difference(actual.gradients.at(name), gradient), 2e-6) << name;
  }
}

TEST_F(TaskStepTest, ResultsDoNotDependOnTheSplit) {
  const TaskSettings tasks{.num_tasks = kTasks, .weights = {0.5, 1.25, 2}, .measure_gradient_norms = true};
  const auto expected = accumulate(samples_, {.micro_batch_size = 8, .tasks = tasks});
  for (const int64_t size : {1, 3}) {
    const auto actual = accumulate(samples_, {.micro_batch_size = size, .loss_chunk_rows = 5, .tasks = tasks});
    EXPECT_NEAR(actual.result.loss.item<double>() / expected.result.loss.item<double>(), 1, 1e-6);
    const auto actual_tasks = actual.tasks();
    const auto expected_tasks = expected.tasks();
    for (size_t i = 0; i < expected_tasks.size(); ++i) {
      EXPECT_NEAR(actual_tasks[i].loss / expected_tasks[i].loss, 1, 1e-6);
      EXPECT_EQ(actual_tasks[i].accuracy, expected_tasks[i].accuracy);
      EXPECT_GT(expected_tasks[i].gradient_norm, 0);
      EXPECT_NEAR(actual_tasks[i].gradient_norm / expected_tasks[i].gradient_norm, 1, 2e-6);
    }
    for (const auto& [name, gradient] : expected.gradients) {
      if (has_zero_true_gradient(name)) continue;
      EXPECT_LT(relative_difference(actual.gradients.at(name), gradient), 2e-6) << name;
    }
  }
}

TEST_F(TaskStepTest, ConflictResolutionDoesNotDependOnTheSplit) {
  const auto initial_model = parity::Case("mixed_batch").load_model();
  StepResult first_result, second_result;
  const auto expected = train_pcgrad_step({3, 4, 1}, &first_result);
  const auto actual = train_pcgrad_step({1, 2, 1, 2, 1, 1}, &second_result);
  EXPECT_EQ(first_result.scalars.numel(), 4 + 3 * kTasks);
  EXPECT_NEAR(second_result.grad_norm.item<double>() / first_result.grad_norm.item<double>(), 1, 2e-6);
  for (const auto& parameter : initial_model->parameters().all()) {
    if (has_zero_true_gradient(parameter.name)) continue;
    const at::Tensor expected_update = expected.at(parameter.name) - parameter.tensor.detach();
    ASSERT_GT(expected_update.abs().max().item<double>(), 0) << parameter.name;
    EXPECT_LT(relative_difference(actual.at(parameter.name) - parameter.tensor.detach(), expected_update), 1e-3)
        << parameter.name;
  }
}

TEST_F(TaskStepTest, StepUsesTheResolvedGradients) {
  const std::vector<double> weights{0.5, 1, 2};  // as in train_pcgrad_step()
  StepResult result;
  train_pcgrad_step({3, 4, 1}, &result);
  const auto model = parity::Case("mixed_batch").load_model();
  std::vector<at::Tensor> by_task;
  for (int64_t task = 0; task < kTasks; ++task) {
    std::vector<data::Sample> task_samples;
    std::ranges::copy_if(samples_, std::back_inserter(task_samples),
                         [task](const auto& s) { return s.task_index == task; });
    const auto task_alone = accumulate(task_samples, {.micro_batch_size = 8});
    const double share = weights[static_cast<size_t>(task)] * static_cast<double>(task_alone.result.label_tokens) /
                         static_cast<double>(result.label_tokens);
    std::vector<at::Tensor> flat_gradients;
    for (const auto& parameter : model->parameters().all()) {
      const at::Tensor& gradient = task_alone.gradients.at(parameter.name);
      flat_gradients.push_back(gradient.defined() ? gradient.reshape({-1}) * share : at::zeros({parameter.elements()}));
    }
    by_task.push_back(at::cat(flat_gradients).to(at::kDouble));
  }
  const at::Tensor gradients = at::stack(by_task);
  const at::Tensor products = gradients.matmul(gradients.t());
  ASSERT_LT(products.min().item<double>(), 0) << "else there is nothing to resolve";
  const at::Tensor factors = compute_pcgrad_coefficients(products, make_pcgrad_orders(kTasks, /*seed=*/4));
  const double expected = factors.matmul(gradients).norm().item<double>();
  const double plain = gradients.sum(0).norm().item<double>();
  EXPECT_NEAR(result.grad_norm.item<double>() / expected, 1, 1e-4);
  EXPECT_GT(std::abs(plain / expected - 1), 1e-3) << "of another length";
}

TEST_F(TaskStepTest, MicroBatchOfTwoTasksIsRejected) {
  StepResult result;
  EXPECT_THROW(train_pcgrad_step({4, 4}, &result), InternalError);
}

}  // namespace
}  // namespace vlmtrain::engine
