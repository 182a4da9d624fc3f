#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <map>
#include <set>
#include <thread>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"

namespace vlmtrain::engine {
namespace {

using Weights = std::map<std::string, at::Tensor>;

constexpr int64_t kSteps = 3;
// With such a large epsilon the update is proportional to the gradient.
constexpr OptimizerSettings kSettings{.adamw = {.epsilon = 1e3}, .weight_decay = 0, .max_grad_norm = 1};
constexpr LearningRates kRankRates{1e3, 1e3, 1e3};

/// A rendezvous of two threads that act as two ranks.
struct RendezvousPoint {
  std::barrier<> barrier{2};
  std::array<StepStatus, 2> statuses{};
  std::array<bool, 2> flags{};
  std::array<std::vector<double>, 2> sums;
  std::array<std::vector<int64_t>, 2> integers;
  std::array<at::Tensor, 2> tensors;
};

class ThreadConsensus : public Consensus {
 public:
  ThreadConsensus(RendezvousPoint& rendezvous, size_t rank) : rendezvous_(rendezvous), rank_(rank) {}

  StepStatus all_reduce_max(StepStatus value) const override {
    return exchange(rendezvous_.statuses, value, [](auto a, auto b) { return std::max(a, b); });
  }
  bool any_rank(bool value) const override {
    return exchange(rendezvous_.flags, value, [](bool a, bool b) { return a || b; });
  }
  std::vector<double> sum_over_ranks(std::vector<double> value) const override {
    return exchange(rendezvous_.sums, value, [](auto a, const auto& b) {
      for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    });
  }
  std::vector<int64_t> union_over_ranks(std::vector<int64_t> value) const override {
    return exchange(rendezvous_.integers, value, [](const auto& a, const auto& b) {
      std::set<int64_t> all(a.begin(), a.end());
      all.insert(b.begin(), b.end());
      return std::vector<int64_t>(all.begin(), all.end());
    });
  }
  void all_reduce_sum_async(const at::Tensor& value) const override {
    value.copy_(exchange(rendezvous_.tensors, value.clone(), [](const auto& a, const auto& b) { return a + b; }));
  }

 private:
  template <class Value, class Combine>
  Value exchange(std::array<Value, 2>& values, const Value& value, const Combine& combine) const {
    values[rank_] = value;
    rendezvous_.barrier.arrive_and_wait();
    Value combined = combine(values[0], values[1]);
    rendezvous_.barrier.arrive_and_wait();
    return combined;
  }

  RendezvousPoint& rendezvous_;
  size_t rank_;
};

Weights copy_weights(const models::VisionLanguageModel& model) {
  Weights weights;
  for (const auto& parameter : model.parameters().all()) weights[parameter.name] = parameter.tensor.detach().clone();
  return weights;
}

struct TrainedRank {
  Weights weights;
  std::vector<double> losses, norms;
  std::vector<TaskResult> tasks;  // of the last step
  int64_t tokens = 0, label_tokens = 0, samples = 0;
  double label_weight = 0;
};

/// Trains on these samples as one of the ranks.
TrainedRank train(const std::vector<data::Sample>& samples, const SmallStep& step_options, const Consensus& consensus) {
  const auto model = parity::Case("mixed_batch").load_model();
  const CrossEntropyObjective objective(step_options.tasks);
  TrainingState training(*model, kSettings, objective.num_gradient_groups());
  training.gradient_reducer.register_comm_hook(
      [&consensus](const at::Tensor& bucket) { consensus.all_reduce_sum_async(bucket); });
  TrainedRank outcome;
  for (int64_t i = 0; i < kSteps; ++i) {
    const StepInput input{.objective = objective,
                          .samples = samples,
                          .normalizers = consensus.sum_over_ranks(objective.compute_normalizers(samples))};
    TrainingStep step(training, input, consensus);
    step.accumulate(step_options.make_layout(*model, samples));
    step.prepare();
    const StepResult result = step.apply_update(kRankRates);
    if (step_options.tasks.is_multi_task()) outcome.tasks = read_task_results(result);
    outcome.tokens = result.tokens;
    outcome.label_tokens = result.label_tokens;
    outcome.label_weight = result.label_weight;
    outcome.samples = result.samples;
    outcome.losses.push_back(result.loss.item<double>());
    outcome.norms.push_back(result.grad_norm.item<double>());
  }
  outcome.weights = copy_weights(*model);
  return outcome;
}

/// Unequal shares in different micro-batches. The second rank has no image, so its tower gets no
/// gradient.
void expect_equal_to_one_process(std::vector<data::Sample> samples, const TaskSettings& tasks, double tolerance) {
  for (size_t i = 0; tasks.is_multi_task() && i < samples.size(); ++i)
    samples[i].task_index = static_cast<int64_t>(i / 2) % 2;
  std::array<std::vector<data::Sample>, 2> rank_samples;
  for (const auto& sample : samples) rank_samples[sample.num_media() > 0 ? 0 : 1].push_back(sample);
  ASSERT_EQ(rank_samples[1].size(), 3U);

  const TrainedRank expected = train(samples, {.micro_batch_size = 4, .tasks = tasks}, Consensus());
  RendezvousPoint rendezvous;
  std::array<TrainedRank, 2> actual;
  {
    std::vector<std::jthread> ranks;
    for (size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        actual[rank] = train(rank_samples[rank], {.micro_batch_size = rank == 0 ? 2 : 1, .tasks = tasks},
                             ThreadConsensus(rendezvous, rank));
      });
    }
  }
  const auto initial_weights = copy_weights(*parity::Case("mixed_batch").load_model());
  for (const auto& rank_result : actual) {
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(rank_result.losses[i] / expected.losses[i], 1, tolerance) << "step " << i;
      EXPECT_NEAR(rank_result.norms[i] / expected.norms[i], 1, tolerance) << "step " << i;
    }
    EXPECT_EQ(rank_result.tokens, expected.tokens);
    EXPECT_EQ(rank_result.label_tokens, expected.label_tokens);
    EXPECT_NEAR(rank_result.label_weight / expected.label_weight, 1, 1e-14);
    EXPECT_EQ(rank_result.samples, expected.samples);
    ASSERT_EQ(rank_result.tasks.size(), expected.tasks.size());
    for (size_t task = 0; task < expected.tasks.size(); ++task) {
      EXPECT_EQ(rank_result.tasks[task].counts.samples, expected.tasks[task].counts.samples);
      EXPECT_NEAR(rank_result.tasks[task].loss / expected.tasks[task].loss, 1, tolerance);
      EXPECT_EQ(rank_result.tasks[task].accuracy, expected.tasks[task].accuracy);
      EXPECT_NEAR(rank_result.tasks[task].gradient_norm / expected.tasks[task].gradient_norm, 1, 10 * tolerance);
    }
    for (const auto& [name, weight] : expected.weights) {
      if (parity::has_zero_true_gradient(name)) continue;
      const at::Tensor moved = weight - initial_weights.at(name);
      ASSERT_GT(moved.abs().max().item<double>(), 0) << name;
      EXPECT_LT(parity::relative_difference(rank_result.weights.at(name) - initial_weights.at(name), moved),
                100 * tolerance)
          << name;
      EXPECT_TRUE(actual[0].weights.at(name).equal(actual[1].weights.at(name))) << name << ": the processes differ";
    }
  }
}

TEST(TwoRanks, TrainLikeOneRank) {
  expect_equal_to_one_process(batch_of_eight(), {}, 1e-5);
}

TEST(TwoRanks, TrainOnWeightedLabelsLikeOneRank) {
  expect_equal_to_one_process(make_weighted_samples(), {}, 1e-5);
  expect_equal_to_one_process(make_weighted_samples(), {.num_tasks = 2, .measure_gradient_norms = true}, 1e-5);
}

TEST(TwoRanks, ResolveConflictsLikeOneRank) {
  expect_equal_to_one_process(batch_of_eight(),
                              {.num_tasks = 2,
                               .weights = {0.5, 1.5},
                               .measure_gradient_norms = true,
                               .resolve_gradient_conflicts = true,
                               .seed = 3},
                              1e-5);
}

}  // namespace
}  // namespace vlmtrain::engine
