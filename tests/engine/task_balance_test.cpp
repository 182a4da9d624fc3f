#include "vlmtrain/engine/loss/task_balance.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/small_parameters.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

namespace {

using testing::DoubleEq;
using testing::ElementsAre;

at::Tensor parse_matrix(const nlohmann::json& json) {
  std::vector<double> values;
  for (const auto& row : json) {
    for (const auto& value : row) values.push_back(value.get<double>());
  }
  return at::tensor(values, at::kFloat).view({std::ssize(json), -1});
}

TaskResult make_result(double loss, double norm, int64_t label_tokens = 1) {
  return {.counts = {.samples = 1, .label_tokens = label_tokens}, .loss = loss, .gradient_norm = norm};
}

/// From hidden states to weights, compared with autograd in fp64
/// (tests/engine/data/make_gradnorm.py).
TEST(GradNorm, MatchesThePaperByAutograd) {
  std::ifstream file(VLMTRAIN_SOURCE_DIR "/tests/engine/data/gradnorm.json");
  const auto reference = nlohmann::json::parse(file);
  const auto tasks = reference["tasks"].get<int64_t>();
  const at::Tensor output = parse_matrix(reference["output"]);
  GradNorm gradnorm(tasks, {.alpha = reference["alpha"], .learning_rate = reference["learning_rate"]});
  ASSERT_EQ(reference["steps"].size(), 5U);
  for (const auto& step : reference["steps"]) {
    const std::vector<double> weights = gradnorm.weights();
    const PerTaskLossSums sums({.num_tasks = tasks, .weights = weights, .measure_gradient_norms = true}, output.size(1),
                               at::kCPU);
    const auto label_task_indices = step["tasks"].get<std::vector<int64_t>>();
    nn::linear_cross_entropy(parse_matrix(step["hidden"]), {output},
                             at::tensor(step["labels"].get<std::vector<int64_t>>(), at::kLong),
                             static_cast<double>(label_task_indices.size()), /*chunk_rows=*/2,
                             sums.make_per_task_loss(at::tensor(label_task_indices, at::kLong)));
    std::vector<TaskCounts> counts(static_cast<size_t>(tasks));
    for (const int64_t task : label_task_indices) {
      ++counts[static_cast<size_t>(task)].label_tokens;
      ++counts[static_cast<size_t>(task)].label_weight;
    }
    const at::Tensor scalars = sums.compute_metric_scalars().to(at::kDouble);
    const auto results =
        make_task_results({scalars.const_data_ptr<double>(), static_cast<size_t>(scalars.numel())}, counts);
    for (size_t task = 0, i = 0; task < counts.size(); ++task) {
      if (counts[task].label_tokens == 0) continue;
      EXPECT_NEAR(results[task].gradient_norm, step["norms"][i++].get<double>(), 1e-6);
    }
    gradnorm.update_weights(results, weights);
    const auto expected = step["weights_after"].get<std::vector<double>>();
    for (size_t task = 0; task < expected.size(); ++task) EXPECT_NEAR(gradnorm.weights()[task], expected[task], 1e-5);
  }
}

/// Norms 3 and 1 with equal losses: the mean is 2, so weight 0 falls by 0.1 · 3 and weight 1 rises
/// by 0.1 · 1. The results 0.7 and 1.1 are scaled to sum to 2.
TEST(GradNorm, MatchesHandComputedStep) {
  GradNorm gradnorm(2, {.alpha = 1.5, .learning_rate = 0.1});
  gradnorm.update_weights({make_result(2, 3), make_result(5, 1)}, {1, 1});
  EXPECT_THAT(gradnorm.weights(), ElementsAre(DoubleEq(0.7 * 2 / 1.8), DoubleEq(1.1 * 2 / 1.8)));
  EXPECT_EQ(gradnorm.state().initial_losses[0], 2);
}

/// Task 1 halved its loss, task 0 did not improve: r is 4/3 and 2/3, so with equal norms task 0
/// gains weight.
TEST(GradNorm, SlowTaskGainsWeight) {
  GradNorm gradnorm(2, {.alpha = 1.0, .learning_rate = 0.1});
  gradnorm.update_weights({make_result(2, 1), make_result(4, 1)}, {1, 1});
  EXPECT_THAT(gradnorm.weights(), ElementsAre(1, 1));
  gradnorm.update_weights({make_result(2, 1), make_result(2, 1)}, {1, 1});
  EXPECT_THAT(gradnorm.weights(), ElementsAre(DoubleEq(1.1), DoubleEq(0.9)));
}

TEST(GradNorm, AbsentTasksKeepTheirWeightsAndOneTaskAloneChangesNothing) {
  GradNorm gradnorm(3, {.learning_rate = 0.1});
  gradnorm.update_weights({make_result(2, 3), make_result(0, 0, 0), make_result(5, 1)}, {1, 1, 1});
  const auto weights = gradnorm.weights();
  EXPECT_EQ(weights[1], 1);
  EXPECT_LT(weights[0], 1);
  EXPECT_DOUBLE_EQ(weights[0] + weights[2], 2);
  EXPECT_FALSE(gradnorm.state().initial_losses[1]);
  gradnorm.update_weights({make_result(0, 0, 0), make_result(3, 9), make_result(0, 0, 0)}, weights);
  EXPECT_EQ(gradnorm.weights(), weights);
}

TEST(GradNorm, NoWeightReachesZero) {
  GradNorm gradnorm(2, {.learning_rate = 10});
  for (int i = 0; i < 5; ++i) gradnorm.update_weights({make_result(2, 30), make_result(2, 1)}, gradnorm.weights());
  EXPECT_GT(gradnorm.weights()[0], 0);
  EXPECT_DOUBLE_EQ(gradnorm.weights()[0] + gradnorm.weights()[1], 2);
}

using testing::DoubleNear;
using testing::ElementsAre;

/// Returns the sum of resolved gradients by the paper's algorithm, from g [tasks, elements].
at::Tensor resolve_reference(const at::Tensor& g, const at::Tensor& orders) {
  at::Tensor sum = at::zeros_like(g.select(0, 0));
  for (int64_t i = 0; i < g.size(0); ++i) {
    at::Tensor projected = g.select(0, i).clone();
    for (int64_t k = 0; k < orders.size(0); ++k) {
      const at::Tensor other = g.select(0, orders.select(0, k).select(0, i).item<int64_t>());
      const double product = (projected * other).sum().item<double>();
      if (product < 0) projected = projected - other * (product / other.square().sum().item<double>());
    }
    sum = sum + projected;
  }
  return sum;
}

at::Tensor resolve_with_coefficients(const at::Tensor& g, const at::Tensor& orders) {
  return at::matmul(compute_pcgrad_coefficients(at::matmul(g, g.t()), orders), g);
}

std::vector<double> to_doubles(const at::Tensor& tensor) {
  const at::Tensor doubles = tensor.to(at::kDouble).contiguous();
  return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + doubles.numel()};
}

at::Tensor make_rows(const std::vector<std::vector<double>>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : values) tensors.push_back(at::tensor(row, at::kDouble));
  return at::stack(tensors);
}

/// (1, 0) and (−1, 1): the first becomes (½, ½), the second (0, 1).
TEST(PcGrad, TwoTasksMatchHandComputation) {
  EXPECT_THAT(to_doubles(resolve_with_coefficients(make_rows({{1, 0}, {-1, 1}}), make_pcgrad_orders(2, 5))),
              ElementsAre(0.5, 1.5));
}

TEST(PcGrad, TasksThatAgreeAddUp) {
  const auto coefficients =
      compute_pcgrad_coefficients(make_rows({{2, 1, 0}, {1, 3, 2}, {0, 2, 9}}), make_pcgrad_orders(3, 5));
  EXPECT_THAT(to_doubles(coefficients), ElementsAre(1, 1, 1));
}

TEST(PcGrad, OppositeGradientsCancel) {
  EXPECT_THAT(to_doubles(resolve_with_coefficients(make_rows({{1, 2}, {-3, -6}}), make_pcgrad_orders(2, 0))),
              ElementsAre(DoubleNear(0, 1e-15), DoubleNear(0, 1e-15)));
}

TEST(PcGrad, AbsentTaskConflictsWithNone) {
  const auto coefficients =
      compute_pcgrad_coefficients(make_rows({{1, 0, -1}, {0, 0, 0}, {-1, 0, 4}}), make_pcgrad_orders(3, 1));
  // Task 0 becomes g0 + ¼ g2, task 2 becomes g2 + g0; the zero gradient of task 1 has no effect.
  EXPECT_THAT(to_doubles(coefficients), ElementsAre(2, 1, 1.25));
}

/// g0 = (1, 0), g1 = (−1, 1), g2 = (−1, −1). Task 0 becomes (½, ½) after g1 and (0, 0) after g2. g1
/// and g2 are orthogonal: if they are compared first, nothing changes, and g0 makes them (0, 1) and
/// (0, −1). If g0 comes first, they become (0, 1) and (0, −1), which conflict with g2 and g1: (−½,
/// ½) and (−½, −½).
TEST(PcGrad, ThreeTasksMatchHandComputation) {
  const auto g = make_rows({{1, 0}, {-1, 1}, {-1, -1}});
  const auto each_other_first = at::tensor({1, 2, 1, 2, 0, 0}, at::kLong).view({2, 3});
  const auto first_task_first = at::tensor({1, 0, 0, 2, 2, 1}, at::kLong).view({2, 3});
  EXPECT_THAT(to_doubles(resolve_with_coefficients(g, each_other_first)),
              ElementsAre(DoubleNear(0, 1e-15), DoubleNear(0, 1e-15)));
  EXPECT_THAT(to_doubles(resolve_with_coefficients(g, first_task_first)),
              ElementsAre(DoubleNear(-1, 1e-15), DoubleNear(0, 1e-15)));
}

TEST(PcGrad, MatchesThePapersAlgorithmInEveryOrder) {
  at::manual_seed(2);
  int64_t changed = 0;
  for (const int64_t tasks : {2, 3, 5}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const auto g = at::randn({tasks, 4}, at::kDouble);
      const auto orders = make_pcgrad_orders(tasks, seed);
      const auto expected = resolve_reference(g, orders);
      EXPECT_LT((resolve_with_coefficients(g, orders) - expected).abs().max().item<double>(), 1e-12);
      changed += (expected - g.sum(0)).abs().max().item<double>() > 1e-3 ? 1 : 0;
    }
  }
  EXPECT_GT(changed, 20) << "nearly no gradients were in conflict";
}

TEST(PcGrad, OrdersArePermutationsOfTheOthersAndDependOnTheSeed) {
  std::set<std::vector<double>> distinct_orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto orders = make_pcgrad_orders(4, seed);
    ASSERT_EQ(orders.sizes(), (at::IntArrayRef{3, 4}));
    for (int64_t task = 0; task < 4; ++task) {
      const auto column = to_doubles(orders.select(1, task));
      std::set<double> tasks_in_order{column.begin(), column.end()};
      tasks_in_order.insert(static_cast<double>(task));
      EXPECT_THAT(tasks_in_order, ElementsAre(0, 1, 2, 3));
    }
    EXPECT_TRUE(at::equal(make_pcgrad_orders(4, seed), orders));
    distinct_orders.insert(to_doubles(orders));
  }
  EXPECT_GT(distinct_orders.size(), 15U);
}

/// Tensors whose sizes leave gaps between them.
TEST(PcGrad, CombinesAllTensors) {
  at::manual_seed(3);
  const std::vector<std::pair<std::string, int64_t>> tensors{{"a", 7}, {"b", 128}, {"c", 300}};
  nn::ParameterStore store(at::TensorOptions(at::kFloat));
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  for (const auto& [name, elements] : tensors) scope.add_parameter(name, {elements}, nn::InitialValues::zeros());
  GradientBuckets buckets(store, 3);
  for (int step = 0; step < 2; ++step) {  // the second step must not see the first
    std::vector<at::Tensor> task_gradients;
    for (int64_t task = 0; task < 3; ++task) {
      buckets.set_gradient_group(task);
      std::vector<at::Tensor> flat_parts;
      for (const auto& parameter : store.all()) {
        // In the second step one tensor has no gradient for one task, and another for no task.
        const bool is_missing = step == 1 && (parameter.name == "model.b" ? task == 0 : parameter.name == "model.a");
        const double direction = task == 2 ? -1 : 1;
        flat_parts.push_back(at::randn(parameter.tensor.sizes()) * direction -
                             0.1 * direction * static_cast<double>(task));
        if (is_missing) flat_parts.back().zero_();
        if (!is_missing) add_gradient(parameter.tensor, flat_parts.back());
      }
      task_gradients.push_back(at::cat(flat_parts).to(at::kDouble));
    }
    resolve_gradient_conflicts(buckets, 9);
    const auto expected = resolve_reference(at::stack(task_gradients), make_pcgrad_orders(3, 9));
    EXPECT_GT((expected - at::stack(task_gradients).sum(0)).abs().max().item<double>(), 1e-3) << "no conflict";
    int64_t first = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto expected_sum = expected.narrow(0, first, tensors[i].second);
      first += tensors[i].second;
      ASSERT_EQ(buckets.has_gradient(i), step == 0 || i > 0);
      if (!buckets.has_gradient(i)) continue;
      EXPECT_LT((buckets.sum(i) - expected_sum).abs().max().item<double>(), 1e-6) << step << ", " << i;
    }
    buckets.reset();
  }
}

/// AdamW with separate gradients, compared with one that gets the resolved gradient.
TEST(SeparateTasks, StepUsesTheResolvedGradient) {
  Parameters separate, combined;
  combined.copy_from(separate);
  BucketedOptimizer optimizer(separate.store(), {}, /*groups=*/2);
  BucketedOptimizer reference(combined.store(), {});
  const LearningRates rates{1e-2, 1e-2, 1e-2};
  for (uint64_t step = 0; step < 3; ++step) {
    std::vector<std::map<std::string, at::Tensor>> gradients{random_gradients(separate, 2 * step, 1.0),
                                                             random_gradients(separate, 2 * step + 1, 1.0)};
    for (auto& [name, gradient] : gradients[1]) gradient = gradient - gradients[0].at(name);
    for (const int64_t task : {1, 0}) {
      optimizer.gradient_buckets.set_gradient_group(task);
      add_gradients(separate, gradients[static_cast<size_t>(task)]);
    }
    std::vector<at::Tensor> flat;
    for (const auto& named_gradients : gradients) {
      std::vector<at::Tensor> flat_parts;
      for (const auto& [name, gradient] : named_gradients) flat_parts.push_back(gradient.flatten());
      flat.push_back(at::cat(flat_parts).to(at::kDouble));
    }
    at::Tensor resolved = resolve_reference(at::stack(flat), make_pcgrad_orders(2, step)).to(at::kFloat);
    EXPECT_GT((resolved - (flat[0] + flat[1])).abs().max().item<double>(), 1e-2) << "no conflict";
    int64_t first = 0;
    for (const auto& [name, gradient] : gradients[0]) {
      add_gradient(combined.tensor(name), resolved.narrow(0, first, gradient.numel()).view(gradient.sizes()));
      first += gradient.numel();
    }
    resolve_gradient_conflicts(optimizer.gradient_buckets, step);
    EXPECT_NEAR(optimizer.step(rates).item<double>(), reference.step(rates).item<double>(), 1e-5);
    for (const auto& parameter : separate.store().all()) {
      EXPECT_LT((parameter.tensor - combined.tensor(parameter.name)).abs().max().item<double>(), 1e-5)
          << parameter.name;
      EXPECT_FALSE(optimizer.gradient_buckets.sum(parameter.name).defined());
    }
  }
}

TEST(SeparateTasks, DiscardedStepLeavesNoGradient) {
  Parameters parameters, clean_parameters;
  clean_parameters.copy_from(parameters);
  BucketedOptimizer optimizer(parameters.store(), {}, /*groups=*/2);
  BucketedOptimizer clean(clean_parameters.store(), {}, /*groups=*/2);
  for (const int64_t task : {0, 1}) {
    optimizer.gradient_buckets.set_gradient_group(task);
    add_gradients(parameters, random_gradients(parameters, 7, 100.0));
  }
  optimizer.gradient_buckets.reset();
  for (const int64_t task : {0, 1}) {
    optimizer.gradient_buckets.set_gradient_group(task);
    clean.gradient_buckets.set_gradient_group(task);
    const auto gradients = random_gradients(parameters, static_cast<uint64_t>(task), 1.0);
    add_gradients(parameters, gradients);
    add_gradients(clean_parameters, gradients);
  }
  resolve_gradient_conflicts(optimizer.gradient_buckets, 0);
  resolve_gradient_conflicts(clean.gradient_buckets, 0);
  for (const auto& parameter : parameters.store().all()) {
    EXPECT_TRUE(at::equal(optimizer.gradient_buckets.sum(parameter.name), clean.gradient_buckets.sum(parameter.name)))
        << parameter.name;
  }
}

}  // namespace

}  // namespace vlmtrain::engine
