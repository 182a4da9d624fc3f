#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <map>
#include <set>
#include <thread>

#include "engine/batch_of_eight.h"
#include "engine/results_by_task.h"
#include "engine/small_step.h"
#include "parity/deviations.h"

namespace vlmtrain::engine {
namespace {

using Weights = std::map<std::string, at::Tensor>;

constexpr int64_t kSteps = 3;
// So large an epsilon makes the update proportional to the gradient.
constexpr AdamWSettings kSettings{.epsilon = 1e3, .weight_decay = 0, .max_grad_norm = 1};
constexpr LearningRates kRates{1e3, 1e3, 1e3};

/// Where two threads meet that stand for two processes.
struct MeetingPlace {
  std::barrier<> barrier{2};
  std::array<Verdict, 2> verdicts{};
  std::array<bool, 2> yes{};
  std::array<std::vector<double>, 2> terms;
  std::array<std::vector<int64_t>, 2> numbers;
  std::array<at::Tensor, 2> tensors;
};

class OneOfTwoThreads : public Consensus {
 public:
  OneOfTwoThreads(MeetingPlace& place, size_t rank) : place_(place), rank_(rank) {}

  Verdict worst(Verdict own) const override {
    return meet(place_.verdicts, own, [](auto a, auto b) { return std::max(a, b); });
  }
  bool any(bool own) const override {
    return meet(place_.yes, own, [](bool a, bool b) { return a || b; });
  }
  std::vector<double> sum(std::vector<double> own) const override {
    return meet(place_.terms, own, [](auto a, const auto& b) {
      for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    });
  }
  std::vector<int64_t> together(std::vector<int64_t> own) const override {
    return meet(place_.numbers, own, [](const auto& a, const auto& b) {
      std::set<int64_t> all(a.begin(), a.end());
      all.insert(b.begin(), b.end());
      return std::vector<int64_t>(all.begin(), all.end());
    });
  }
  void add_up(const at::Tensor& own) const override {
    own.copy_(meet(place_.tensors, own.clone(), [](const auto& a, const auto& b) { return a + b; }));
  }

 private:
  template <class Value, class Join>
  Value meet(std::array<Value, 2>& values, const Value& own, const Join& join) const {
    values[rank_] = own;
    place_.barrier.arrive_and_wait();
    Value joined = join(values[0], values[1]);
    place_.barrier.arrive_and_wait();
    return joined;
  }

  MeetingPlace& place_;
  size_t rank_;
};

Weights weights_of(const models::VisionLanguageModel& model) {
  Weights weights;
  for (const auto& parameter : model.parameters().all()) weights[parameter.name] = parameter.tensor.detach().clone();
  return weights;
}

struct Trained {
  Weights weights;
  std::vector<double> losses, norms;
  std::vector<TaskResult> tasks;  // of the last step
  int64_t tokens = 0, label_tokens = 0, samples = 0;
};

/// Steps of these samples in one of the processes.
Trained train(const std::vector<data::Sample>& samples, const SmallStep& how, const Consensus& consensus) {
  const auto model = parity::Case("mixed_batch").load_model();
  const CrossEntropy objective(how.tasks);
  Training training(*model, kSettings, objective.gradient_groups());
  training.sums.reduce_with([&consensus](const at::Tensor& bucket) { consensus.add_up(bucket); });
  Trained trained;
  for (int64_t i = 0; i < kSteps; ++i) {
    const StepInput input{
        .objective = objective, .samples = samples, .normalizers = consensus.sum(objective.normalizers(samples))};
    Step step(training, input, consensus);
    step.accumulate(how.layout_of(*model, samples));
    step.prepare();
    const StepResult result = step.apply(kRates);
    if (how.tasks.apart()) trained.tasks = results_by_task(result);
    trained.tokens = result.tokens;
    trained.label_tokens = result.label_tokens;
    trained.samples = result.samples;
    trained.losses.push_back(result.loss.item<double>());
    trained.norms.push_back(result.grad_norm.item<double>());
  }
  trained.weights = weights_of(*model);
  return trained;
}

/// Unequal parts in micro-batches of other sizes; the second process has no image, so that its tower gets no gradient.
void expect_as_one_process(const TaskSettings& tasks, double tolerance) {
  auto samples = batch_of_eight();
  for (size_t i = 0; tasks.apart() && i < samples.size(); ++i) samples[i].task_number = static_cast<int64_t>(i / 2) % 2;
  std::array<std::vector<data::Sample>, 2> parts;
  for (const auto& sample : samples) parts[sample.images > 0 ? 0 : 1].push_back(sample);
  ASSERT_EQ(parts[1].size(), 3U);

  const Trained wanted = train(samples, {.micro_batch_size = 4, .tasks = tasks}, Consensus());
  MeetingPlace place;
  std::array<Trained, 2> found;
  {
    std::vector<std::jthread> processes;
    for (size_t rank = 0; rank < 2; ++rank) {
      processes.emplace_back([&, rank] {
        found[rank] =
            train(parts[rank], {.micro_batch_size = rank == 0 ? 2 : 1, .tasks = tasks}, OneOfTwoThreads(place, rank));
      });
    }
  }
  const auto before = weights_of(*parity::Case("mixed_batch").load_model());
  for (const auto& one : found) {
    for (size_t i = 0; i < wanted.losses.size(); ++i) {
      EXPECT_NEAR(one.losses[i] / wanted.losses[i], 1, tolerance) << "step " << i;
      EXPECT_NEAR(one.norms[i] / wanted.norms[i], 1, tolerance) << "step " << i;
    }
    EXPECT_EQ(one.tokens, wanted.tokens);
    EXPECT_EQ(one.label_tokens, wanted.label_tokens);
    EXPECT_EQ(one.samples, wanted.samples);
    ASSERT_EQ(one.tasks.size(), wanted.tasks.size());
    for (size_t task = 0; task < wanted.tasks.size(); ++task) {
      EXPECT_EQ(one.tasks[task].counts.samples, wanted.tasks[task].counts.samples);
      EXPECT_NEAR(one.tasks[task].loss / wanted.tasks[task].loss, 1, tolerance);
      EXPECT_EQ(one.tasks[task].accuracy, wanted.tasks[task].accuracy);
      EXPECT_NEAR(one.tasks[task].gradient_norm / wanted.tasks[task].gradient_norm, 1, 10 * tolerance);
    }
    for (const auto& [name, weight] : wanted.weights) {
      if (parity::has_zero_true_gradient(name)) continue;
      const at::Tensor moved = weight - before.at(name);
      ASSERT_GT(moved.abs().max().item<double>(), 0) << name;
      EXPECT_LT(parity::relative_difference(one.weights.at(name) - before.at(name), moved), 100 * tolerance) << name;
      EXPECT_TRUE(found[0].weights.at(name).equal(found[1].weights.at(name))) << name << ": the processes differ";
    }
  }
}

TEST(TwoProcesses, TrainAsOneDoes) {
  expect_as_one_process({}, 1e-5);
}

TEST(TwoProcesses, ResolveConflictsAsOneDoes) {
  expect_as_one_process(
      {.count = 2, .weights = {0.5, 1.5}, .gradient_norms = true, .resolve_conflicts = true, .seed = 3}, 1e-5);
}

}  // namespace
}  // namespace vlmtrain::engine
