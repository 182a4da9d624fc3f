#include "train/step/oom_guard.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "engine/batch_of_eight.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::train {

namespace {

using Gradients = std::map<std::string, at::Tensor>;

constexpr uint64_t kSeed = 5;
constexpr int64_t kFaultPoints = 50;
constexpr int64_t kFollowingSteps = 20;
const engine::Consensus kSingleProcess;

/// LoRA adapters with dropout on all Linears of a small model, trained in fp32 on eight samples of
/// different lengths.
class SmallTraining {
 public:
  /// The two halves of the samples are one task each where `tasks` says so.
  explicit SmallTraining(int64_t micro_batch_size = 4, const engine::TaskSettings& tasks = {},
                         const engine::Consensus& consensus = kSingleProcess)
      : objective_(tasks) {
    const parity::Case test_case("mixed_batch");
    samples_ = engine::batch_of_eight();
    for (size_t i = 0; i < samples_.size(); ++i) {
      samples_[i].seed = 100 + i;
      samples_[i].task_index = objective_.tasks().is_multi_task() && 2 * i >= samples_.size() ? 1 : 0;
    }
    model_ =
        models::build_model(test_case.checkpoint(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 4, .dropout = 0.1});
    models::load_weights(*model_, test_case.checkpoint());
    models::initialize_adapter(*model_, /*seed=*/1);
    training_ =
        std::make_unique<engine::TrainingState>(*model_, engine::OptimizerSettings{}, objective_.num_gradient_groups());
    guard_ = std::make_unique<OomGuard>(
        *training_, at::kCPU, consensus,
        [this](const std::string&, const engine::StepLayout& next) { retried_layouts_.push_back(next); });
    layout_.split =
        engine::split_evenly(std::ssize(samples_), micro_batch_size, objective_.make_split_constraint(samples_));
  }

  double step() {
    const auto rates = [this] {
      std::jthread([this] { copy_gradients(); });  // allocations of another thread do not count
      return engine::LearningRates{1e-3, 1e-3, 1e-3};
    };
    completed_ = guard_->step(objective_, samples_, layout_, kSeed, rates);
    return completed_.result.loss.item<double>();
  }

  std::vector<double> steps(int64_t count) {
    std::vector<double> losses;
    for (int64_t i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }

  /// Returns the gradients before the optimizer's step.
  const Gradients& gradients() const { return gradients_; }
  const CompletedStep& completed() const { return completed_; }
  /// Returns the layouts that followed a failure.
  const std::vector<engine::StepLayout>& retried_layouts() const { return retried_layouts_; }
  std::vector<data::Sample>& samples() { return samples_; }

 private:
  void copy_gradients() {
    gradients_.clear();
    if (objective_.num_gradient_groups() > 1) return;  // there are several gradients of each
    for (const auto& parameter : model_->parameters().all()) {
      if (parameter.is_adapter) gradients_[parameter.name] = training_->gradient_buckets.sum(parameter.name).clone();
    }
  }

  const engine::CrossEntropyObjective objective_;
  std::vector<data::Sample> samples_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::TrainingState> training_;
  std::unique_ptr<OomGuard> guard_;
  engine::StepLayout layout_;
  Gradients gradients_;
  CompletedStep completed_;
  std::vector<engine::StepLayout> retried_layouts_;
};

/// Other micro-batches add the same products up in another order: a difference of some thirty
/// roundings of fp32 on all tested processors.
void expect_same(const Gradients& actual, const Gradients& expected, const std::string& context) {
  constexpr double kTolerance = 32 * std::numeric_limits<float>::epsilon();
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (const auto& [name, gradient] : expected) largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [name, gradient] : expected) {
    const double difference = (actual.at(name) - gradient).abs().max().item<double>();
    // Rounding of a tiny gradient exceeds the gradient.
    EXPECT_LE(difference, kTolerance * std::max(gradient.abs().max().item<double>(), 1e-2 * largest))
        << context << ", " << name;
  }
}

/// Tests count allocations from the second step on, since libraries allocate caches in the first.
class OomGuardTest : public testing::Test {
 protected:
  memory::AllocationFaultInjector faults_;
};

TEST_F(OomGuardTest, AnyFailingAllocationKeepsGradients) {
  SmallTraining reference;
  reference.step();
  faults_.arm({});
  const double loss = reference.step();
  const int64_t allocations = faults_.num_allocations();
  ASSERT_GT(allocations, 1000);
  int64_t num_failed_attempts = 0;
  for (int64_t point = 0; point < kFaultPoints; ++point) {
    const int64_t failing_allocation_index = point * (allocations - 1) / (kFaultPoints - 1);
    SmallTraining training;
    training.step();
    faults_.arm({.failing_allocation_index = failing_allocation_index});
    const double actual = training.step();
    EXPECT_EQ(faults_.num_failed_allocations(), 1);
    faults_.disarm();
    num_failed_attempts += training.completed().num_failed_attempts;
    const std::string context = fmt::format("allocation {} of {}", failing_allocation_index, allocations);
    EXPECT_NEAR(actual / loss, 1, 1e-6) << context;
    expect_same(training.gradients(), reference.gradients(), context);
  }
  EXPECT_EQ(num_failed_attempts, kFaultPoints);
}

TEST_F(OomGuardTest, StepsAfterAFailureKeepTheirLosses) {
  SmallTraining reference;
  reference.step();
  faults_.arm({});
  reference.step();
  const int64_t allocations = faults_.num_allocations();
  const auto expected = reference.steps(kFollowingSteps);
  for (const double share : {0.1, 0.5, 0.9}) {
    SmallTraining training;
    training.step();
    faults_.arm({.failing_allocation_index = static_cast<int64_t>(share * static_cast<double>(allocations))});
    training.step();
    ASSERT_EQ(training.completed().num_failed_attempts, 1);
    const auto actual = training.steps(kFollowingSteps);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(actual[i] / expected[i], 1, 1e-6) << share << ", step " << i;
  }
}

/// Gradients are summed by task and combined before the update, so that a failure may leave more
/// state.
TEST_F(OomGuardTest, PcGradStepsAreTheSameAfterAnyFailure) {
  const engine::TaskSettings tasks{.num_tasks = 2,
                                   .weights = {0.5, 1.5},
                                   .measure_gradient_norms = true,
                                   .resolve_gradient_conflicts = true,
                                   .seed = 3};
  SmallTraining reference(2, tasks);
  reference.step();
  faults_.arm({});
  reference.step();
  const int64_t allocations = faults_.num_allocations();
  const auto expected = reference.steps(3);
  for (int64_t point = 0; point < 5; ++point) {
    SmallTraining training(2, tasks);
    training.step();
    faults_.arm({.failing_allocation_index = point * (allocations - 1) / 4});
    training.step();
    EXPECT_EQ(training.completed().num_failed_attempts, 1) << point;
    EXPECT_EQ(faults_.num_failed_allocations(), 1);
    faults_.disarm();
    const auto actual = training.steps(3);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(actual[i] / expected[i], 1, 1e-6) << point << ", step " << i;
  }
}

TEST_F(OomGuardTest, LossesDoNotDependOnAvailableMemory) {
  const int64_t bytes_before = faults_.live_bytes();
  SmallTraining unlimited(8);
  unlimited.step();
  faults_.arm({});
  const auto expected = unlimited.steps(3);
  const int64_t base_bytes = faults_.live_bytes() - bytes_before;
  const int64_t peak_bytes = faults_.peak_bytes() - bytes_before;
  std::vector<int64_t> attempts;
  bool fits = true;
  for (double share = 1; fits && share > 0; share -= 0.1) {
    const int64_t start = faults_.live_bytes();
    SmallTraining training(8);
    training.step();
    faults_.arm({.limit_bytes =
                     start + base_bytes + static_cast<int64_t>(share * static_cast<double>(peak_bytes - base_bytes))});
    try {
      const auto actual = training.steps(3);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(actual[i] / expected[i], 1, 1e-6) << share << ", step " << i;
      attempts.push_back(training.completed().num_failed_attempts);
    } catch (const OversizedSampleError& error) {
      fits = false;
    }
    faults_.disarm();
  }
  EXPECT_EQ(attempts.front(), 0);
  EXPECT_GE(attempts.back(), 2);
  EXPECT_FALSE(fits) << "with no memory at all";
  EXPECT_GE(attempts.size(), 4U);
}

/// One of two ranks; memory ran out on the other in a phase of the first attempt.
class FailingPeerConsensus : public engine::Consensus {
 public:
  explicit FailingPeerConsensus(int64_t failing_call) : remaining_calls_(failing_call) {}
  engine::StepStatus all_reduce_max(engine::StepStatus value) const override {
    return remaining_calls_-- == 0 ? std::max(value, engine::StepStatus::kRetrySmaller) : value;
  }

 private:
  mutable int64_t remaining_calls_;
};

TEST_F(OomGuardTest, RetriesAStepThatFailedOnAnotherRank) {
  SmallTraining single_process;
  const auto expected = single_process.steps(2);
  for (const int64_t call : {0, 1}) {  // after the passes; after the update was prepared
    const FailingPeerConsensus consensus(call);
    SmallTraining training(4, {}, consensus);
    EXPECT_EQ(training.step(), expected[0]) << call;
    EXPECT_EQ(training.completed().num_failed_attempts, 1);
    ASSERT_EQ(training.retried_layouts().size(), 1U);
    EXPECT_EQ(training.retried_layouts()[0], training.completed().layout) << "no smaller than before";
    EXPECT_EQ(training.step(), expected[1]) << call;
    EXPECT_EQ(training.completed().num_failed_attempts, 0);
  }
}

/// Claims that the other rank has a sample that does not fit, each time the next attempt is
/// discussed.
class OversizedPeerConsensus : public engine::Consensus {
 public:
  engine::StepStatus all_reduce_max(engine::StepStatus value) const override {
    return ++calls_ == 1 ? engine::StepStatus::kRetrySmaller : std::max(value, engine::StepStatus::kSkipSample);
  }

 private:
  mutable int64_t calls_ = 0;
};

TEST_F(OomGuardTest, OversizedSampleOnAnotherRankEndsTheStep) {
  const OversizedPeerConsensus consensus;
  SmallTraining training(4, {}, consensus);
  try {
    training.step();
    FAIL();
  } catch (const OversizedSampleError& error) {
    EXPECT_FALSE(error.position()) << "it is none of this process";
  }
}

TEST_F(OomGuardTest, HalvesThenRecomputesThenUsesSingleSamples) {
  SmallTraining training(4);
  training.step();
  // Each attempt fails with its first allocation.
  faults_.arm({.limit_bytes = 0});
  EXPECT_THROW(training.step(), OversizedSampleError);
  faults_.disarm();
  ASSERT_EQ(training.retried_layouts().size(), 3U);
  EXPECT_THAT(training.retried_layouts()[0].split.sizes, testing::ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(training.retried_layouts()[0].recompute.language, 0);
  EXPECT_THAT(training.retried_layouts()[1].split.sizes, testing::ElementsAre(2, 2, 2, 2));
  EXPECT_GT(training.retried_layouts()[1].recompute.language, 0);
  EXPECT_THAT(training.retried_layouts()[2].split.sizes, testing::ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST_F(OomGuardTest, NamesTheOversizedSample) {
  SmallTraining training(1);
  training.step();
  faults_.arm({});
  training.step();
  const int64_t base_bytes = faults_.live_bytes();
  const int64_t peak_bytes = faults_.peak_bytes();
  const auto& samples = training.samples();
  const auto largest = std::max_element(samples.begin(), samples.end(),
                                        [](const auto& a, const auto& b) { return a.tokens() < b.tokens(); });
  std::optional<int64_t> sample_position;
  for (int64_t share = 19; !sample_position && share >= 0; --share) {
    faults_.arm({.limit_bytes = base_bytes + share * (peak_bytes - base_bytes) / 20});
    try {
      training.step();
    } catch (const OversizedSampleError& error) {
      sample_position = error.position();
    }
  }
  faults_.disarm();
  EXPECT_EQ(sample_position, std::distance(samples.begin(), largest));
}

}  // namespace

}  // namespace vlmtrain::train
