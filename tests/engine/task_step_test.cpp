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
#include "engine/results_by_task.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "vlmtrain/engine/pcgrad.h"

namespace vlmtrain::engine {
namespace {

using parity::has_zero_true_gradient;
using parity::relative_difference;

constexpr int64_t kTasks = 3;

/// The batch of eight as three tasks, one task after another.
std::vector<data::Sample> samples_of_tasks() {
  auto samples = batch_of_eight();
  for (size_t i = 0; i < samples.size(); ++i) samples[i].task_number = static_cast<int64_t>(i * i) % kTasks;
  samples[7].task_number = 2;
  std::ranges::stable_sort(samples, {}, &data::Sample::task_number);
  return samples;
}

struct Done {
  StepResult result;
  std::map<std::string, at::Tensor> gradients;

  std::vector<TaskResult> tasks() const { return results_by_task(result); }
};

class TaskStepTest : public testing::Test {
 protected:
  Done accumulate(const std::vector<data::Sample>& samples, const SmallStep& step) const {
    const auto model = parity::Case("mixed_batch").load_model();
    Done done{accumulate_gradients(*model, samples, step), {}};
    for (const auto& parameter : model->parameters().all()) done.gradients[parameter.name] = parameter.tensor.grad();
    return done;
  }

  /// The model's weights after a step of PCGrad.
  std::map<std::string, at::Tensor> weights_after(const std::vector<int64_t>& micro_batches, StepResult* result) const {
    const auto model = parity::Case("mixed_batch").load_model();
    // So large an epsilon makes the update proportional to the gradient.
    Training training(*model, {.epsilon = 1e3, .max_grad_norm = 0}, kTasks);
    TaskSettings tasks{.count = kTasks, .weights = {0.5, 1, 2}, .gradient_norms = true, .resolve_conflicts = true};
    tasks.seed = 4;
    *result = optimizer_step(training, samples_, LearningRates{1e6, 1e6, 1e6},
                             {.tasks = tasks, .micro_batches = micro_batches});
    std::map<std::string, at::Tensor> weights;
    for (const auto& parameter : model->parameters().all()) weights[parameter.name] = parameter.tensor.detach().clone();
    return weights;
  }

  const std::vector<data::Sample> samples_ = samples_of_tasks();
};

TEST_F(TaskStepTest, TheTasksAreUnequal) {
  const auto counts = count_by_task(samples_, kTasks);
  EXPECT_EQ(counts[0].samples, 3);
  EXPECT_EQ(counts[1].samples, 4);
  EXPECT_EQ(counts[2].samples, 1);
  int64_t labels = 0;
  for (const auto& count : counts) labels += count.label_tokens;
  EXPECT_EQ(labels, accumulate(samples_, {.micro_batch_size = 8}).result.label_tokens);
}

TEST_F(TaskStepTest, LossesByTaskAddUpToTheLoss) {
  const auto done = accumulate(samples_, {.micro_batch_size = 3, .tasks = {.count = kTasks}});
  const auto plain = accumulate(samples_, {.micro_batch_size = 3});
  EXPECT_EQ(done.result.loss.item<double>(), plain.result.loss.item<double>());
  EXPECT_TRUE(plain.result.tasks.empty());
  EXPECT_FALSE(plain.result.objective_numbers.defined());
  double sum = 0;
  for (const auto& task : done.tasks()) {
    EXPECT_GE(task.accuracy, 0);
    EXPECT_LE(task.accuracy, 1);
    sum += task.loss * static_cast<double>(task.counts.label_tokens);
  }
  EXPECT_NEAR(done.result.loss.item<double>(), sum / static_cast<double>(done.result.label_tokens), 2e-6);
  for (const auto& [name, gradient] : plain.gradients)
    EXPECT_TRUE(at::equal(done.gradients.at(name), gradient)) << name;
}

TEST_F(TaskStepTest, TheGradientIsTheWeightedSumOfTheTasks) {
  const std::vector<double> weights{0.5, 1.25, 2};
  const auto found = accumulate(samples_, {.micro_batch_size = 8, .tasks = {.count = kTasks, .weights = weights}});
  std::map<std::string, at::Tensor> wanted;
  double loss = 0;
  for (int64_t task = 0; task < kTasks; ++task) {
    std::vector<data::Sample> own;
    std::ranges::copy_if(samples_, std::back_inserter(own), [task](const auto& s) { return s.task_number == task; });
    const auto alone = accumulate(own, {.micro_batch_size = 8});
    const double share = weights[static_cast<size_t>(task)] * static_cast<double>(alone.result.label_tokens) /
                         static_cast<double>(found.result.label_tokens);
    loss += share * alone.result.loss.item<double>();
    for (const auto& [name, gradient] : alone.gradients) {
      if (!gradient.defined()) continue;
      wanted[name] = wanted.contains(name) ? wanted[name] + gradient * share : gradient * share;
    }
  }
  EXPECT_NEAR(found.result.loss.item<double>(), loss, 2e-6);
  for (const auto& [name, gradient] : wanted) {
    if (has_zero_true_gradient(name)) continue;
    EXPECT_LT(relative_difference(found.gradients.at(name), gradient), 2e-6) << name;
  }
}

TEST_F(TaskStepTest, NothingDependsOnTheCut) {
  const TaskSettings tasks{.count = kTasks, .weights = {0.5, 1.25, 2}, .gradient_norms = true};
  const auto wanted = accumulate(samples_, {.micro_batch_size = 8, .tasks = tasks});
  for (const int64_t size : {1, 3}) {
    const auto found = accumulate(samples_, {.micro_batch_size = size, .loss_chunk_rows = 5, .tasks = tasks});
    EXPECT_NEAR(found.result.loss.item<double>() / wanted.result.loss.item<double>(), 1, 1e-6);
    const auto found_tasks = found.tasks();
    const auto wanted_tasks = wanted.tasks();
    for (size_t i = 0; i < wanted_tasks.size(); ++i) {
      EXPECT_NEAR(found_tasks[i].loss / wanted_tasks[i].loss, 1, 1e-6);
      EXPECT_EQ(found_tasks[i].accuracy, wanted_tasks[i].accuracy);
      EXPECT_GT(wanted_tasks[i].gradient_norm, 0);
      EXPECT_NEAR(found_tasks[i].gradient_norm / wanted_tasks[i].gradient_norm, 1, 2e-6);
    }
    for (const auto& [name, gradient] : wanted.gradients) {
      if (has_zero_true_gradient(name)) continue;
      EXPECT_LT(relative_difference(found.gradients.at(name), gradient), 2e-6) << name;
    }
  }
}

TEST_F(TaskStepTest, ConflictsAreResolvedAlikeWhereverTheBatchIsCut) {
  const auto before = parity::Case("mixed_batch").load_model();
  StepResult first, second;
  const auto wanted = weights_after({3, 4, 1}, &first);
  const auto found = weights_after({1, 2, 1, 2, 1, 1}, &second);
  EXPECT_EQ(first.numbers.numel(), 4 + 3 * kTasks);
  EXPECT_NEAR(second.grad_norm.item<double>() / first.grad_norm.item<double>(), 1, 2e-6);
  for (const auto& parameter : before->parameters().all()) {
    if (has_zero_true_gradient(parameter.name)) continue;
    const at::Tensor moved = wanted.at(parameter.name) - parameter.tensor.detach();
    ASSERT_GT(moved.abs().max().item<double>(), 0) << parameter.name;
    EXPECT_LT(relative_difference(found.at(parameter.name) - parameter.tensor.detach(), moved), 1e-3) << parameter.name;
  }
}

TEST_F(TaskStepTest, TheStepIsOfTheResolvedGradients) {
  const std::vector<double> weights{0.5, 1, 2};  // as in weights_after()
  StepResult result;
  weights_after({3, 4, 1}, &result);
  const auto model = parity::Case("mixed_batch").load_model();
  std::vector<at::Tensor> by_task;
  for (int64_t task = 0; task < kTasks; ++task) {
    std::vector<data::Sample> own;
    std::ranges::copy_if(samples_, std::back_inserter(own), [task](const auto& s) { return s.task_number == task; });
    const auto alone = accumulate(own, {.micro_batch_size = 8});
    const double share = weights[static_cast<size_t>(task)] * static_cast<double>(alone.result.label_tokens) /
                         static_cast<double>(result.label_tokens);
    std::vector<at::Tensor> all;
    for (const auto& parameter : model->parameters().all()) {
      const at::Tensor& gradient = alone.gradients.at(parameter.name);
      all.push_back(gradient.defined() ? gradient.reshape({-1}) * share : at::zeros({parameter.elements()}));
    }
    by_task.push_back(at::cat(all).to(at::kDouble));
  }
  const at::Tensor gradients = at::stack(by_task);
  const at::Tensor products = gradients.matmul(gradients.t());
  ASSERT_LT(products.min().item<double>(), 0) << "else there is nothing to resolve";
  const at::Tensor factors = pcgrad_coefficients(products, pcgrad_orders(kTasks, /*seed=*/4));
  const double wanted = factors.matmul(gradients).norm().item<double>();
  const double plain = gradients.sum(0).norm().item<double>();
  EXPECT_NEAR(result.grad_norm.item<double>() / wanted, 1, 1e-4);
  EXPECT_GT(std::abs(plain / wanted - 1), 1e-3) << "of another length";
}

TEST_F(TaskStepTest, AMicroBatchOfTwoTasksCannotBeToldApart) {
  StepResult result;
  EXPECT_THROW(weights_after({4, 4}, &result), InternalError);
}

}  // namespace
}  // namespace vlmtrain::engine
