#include "train/oom_guard.h"

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
#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/memory/fault_injection.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::train {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

constexpr uint64_t kSeed = 5;
constexpr int64_t kFaultPoints = 50;
constexpr int64_t kFollowingSteps = 20;
const engine::Consensus kAlone;

/// Adapters with dropout on all Linears of a small model, trained in fp32 on eight unequal samples.
class SmallTraining {
 public:
  /// With `tasks` the first and the second half of the samples are a task each.
  explicit SmallTraining(int64_t micro_batch_size = 4, const engine::TaskSettings& tasks = {},
                         const engine::Consensus& consensus = kAlone)
      : objective_(tasks) {
    const parity::Case reference("mixed_batch");
    samples_ = engine::batch_of_eight();
    for (size_t i = 0; i < samples_.size(); ++i) {
      samples_[i].seed = 100 + i;
      samples_[i].task_number = objective_.tasks().apart() && 2 * i >= samples_.size() ? 1 : 0;
    }
    model_ =
        models::build_model(reference.checkpoint(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 4, .dropout = 0.1});
    models::load_weights(*model_, reference.checkpoint());
    models::initialize_adapter(*model_, /*seed=*/1);
    training_ = std::make_unique<engine::Training>(*model_, engine::AdamWSettings{}, objective_.gradient_groups());
    guard_ = std::make_unique<OomGuard>(
        *training_, at::kCPU, consensus,
        [this](const std::string&, const engine::StepLayout& next) { tried_.push_back(next); });
    layout_.cut = engine::equal_cut(std::ssize(samples_), micro_batch_size, objective_.cut_rule(samples_));
  }

  double step() {
    const auto rates = [this] {
      std::jthread([this] { copy_gradients(); });  // another thread's allocations do not count
      return engine::LearningRates{1e-3, 1e-3, 1e-3};
    };
    done_ = guard_->step(objective_, samples_, layout_, kSeed, rates);
    return done_.result.loss.item<double>();
  }

  std::vector<double> steps(int64_t count) {
    std::vector<double> losses;
    for (int64_t i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }

  /// The step's gradients, as they were before the optimizer's step.
  const Gradients& gradients() const { return gradients_; }
  const DoneStep& done() const { return done_; }
  /// Layouts that followed a failure.
  const std::vector<engine::StepLayout>& tried() const { return tried_; }
  std::vector<data::Sample>& samples() { return samples_; }

 private:
  void copy_gradients() {
    gradients_.clear();
    if (objective_.gradient_groups() > 1) return;  // there are several of each
    for (const auto& parameter : model_->parameters().all()) {
      if (parameter.is_adapter) gradients_[parameter.name] = training_->sums.sum(parameter.name).clone();
    }
  }

  const engine::CrossEntropy objective_;
  std::vector<data::Sample> samples_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::Training> training_;
  std::unique_ptr<OomGuard> guard_;
  engine::StepLayout layout_;
  Gradients gradients_;
  DoneStep done_;
  std::vector<engine::StepLayout> tried_;
};

/// Other micro-batches add up the same products in another order: some thirty roundings of fp32 apart, on whichever
/// processor.
void expect_same(const Gradients& found, const Gradients& wanted, const std::string& where) {
  constexpr double kTolerance = 32 * std::numeric_limits<float>::epsilon();
  ASSERT_EQ(found.size(), wanted.size());
  double largest = 0;
  for (const auto& [name, gradient] : wanted) largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [name, gradient] : wanted) {
    const double difference = (found.at(name) - gradient).abs().max().item<double>();
    // Of gradients that are nearly nothing the rounding is larger than they are.
    EXPECT_LE(difference, kTolerance * std::max(gradient.abs().max().item<double>(), 1e-2 * largest))
        << where << ", " << name;
  }
}

/// Tests count allocations from the second step on: the first one is when libraries allocate what they keep.
class OomGuardTest : public testing::Test {
 protected:
  memory::FaultInjection faults_;
};

TEST_F(OomGuardTest, AStepWithAFailureAnywhereHasTheGradientsOfOneWithout) {
  SmallTraining calm;
  calm.step();
  faults_.arm({});
  const double loss = calm.step();
  const int64_t allocations = faults_.allocations();
  ASSERT_GT(allocations, 1000);
  int64_t redone = 0;
  for (int64_t point = 0; point < kFaultPoints; ++point) {
    const int64_t failing = point * (allocations - 1) / (kFaultPoints - 1);
    SmallTraining training;
    training.step();
    faults_.arm({.failing_allocation = failing});
    const double found = training.step();
    EXPECT_EQ(faults_.failures(), 1);
    faults_.disarm();
    redone += training.done().failed_attempts;
    const std::string where = fmt::format("allocation {} of {}", failing, allocations);
    EXPECT_NEAR(found / loss, 1, 1e-6) << where;
    expect_same(training.gradients(), calm.gradients(), where);
  }
  EXPECT_EQ(redone, kFaultPoints);
}

TEST_F(OomGuardTest, TheStepsAfterAFailureHaveTheLossesOfARunWithout) {
  SmallTraining calm;
  calm.step();
  faults_.arm({});
  calm.step();
  const int64_t allocations = faults_.allocations();
  const auto wanted = calm.steps(kFollowingSteps);
  for (const double share : {0.1, 0.5, 0.9}) {
    SmallTraining training;
    training.step();
    faults_.arm({.failing_allocation = static_cast<int64_t>(share * static_cast<double>(allocations))});
    training.step();
    ASSERT_EQ(training.done().failed_attempts, 1);
    const auto found = training.steps(kFollowingSteps);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i] / wanted[i], 1, 1e-6) << share << ", step " << i;
  }
}

/// Gradients are summed by task then, and resolved before the optimizer prepares its update: more that a failure may
/// leave behind.
TEST_F(OomGuardTest, StepsWithPcgradAreTheSameAfterAFailureAnywhere) {
  const engine::TaskSettings tasks{
      .count = 2, .weights = {0.5, 1.5}, .gradient_norms = true, .resolve_conflicts = true, .seed = 3};
  SmallTraining calm(2, tasks);
  calm.step();
  faults_.arm({});
  calm.step();
  const int64_t allocations = faults_.allocations();
  const auto wanted = calm.steps(3);
  for (int64_t point = 0; point < 5; ++point) {
    SmallTraining training(2, tasks);
    training.step();
    faults_.arm({.failing_allocation = point * (allocations - 1) / 4});
    training.step();
    EXPECT_EQ(training.done().failed_attempts, 1) << point;
    EXPECT_EQ(faults_.failures(), 1);
    faults_.disarm();
    const auto found = training.steps(3);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i] / wanted[i], 1, 1e-6) << point << ", step " << i;
  }
}

TEST_F(OomGuardTest, LossesAreTheSameWithWhateverMemoryThereIs) {
  const int64_t before = faults_.live_bytes();
  SmallTraining ample(8);
  ample.step();
  faults_.arm({});
  const auto wanted = ample.steps(3);
  const int64_t held = faults_.live_bytes() - before;
  const int64_t most = faults_.peak_bytes() - before;
  std::vector<int64_t> attempts;
  bool fits = true;
  for (double share = 1; fits && share > 0; share -= 0.1) {
    const int64_t start = faults_.live_bytes();
    SmallTraining training(8);
    training.step();
    faults_.arm({.limit_bytes = start + held + static_cast<int64_t>(share * static_cast<double>(most - held))});
    try {
      const auto found = training.steps(3);
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i] / wanted[i], 1, 1e-6) << share << ", step " << i;
      attempts.push_back(training.done().failed_attempts);
    } catch (const SampleDoesNotFit& error) {
      fits = false;
    }
    faults_.disarm();
  }
  EXPECT_EQ(attempts.front(), 0);
  EXPECT_GE(attempts.back(), 2);
  EXPECT_FALSE(fits) << "with no memory at all";
  EXPECT_GE(attempts.size(), 4U);
}

/// One of two processes, where memory ran out in the other one, in a phase of the first attempt.
class OneOfTwo : public engine::Consensus {
 public:
  explicit OneOfTwo(int64_t failing_call) : left_(failing_call) {}
  engine::Verdict worst(engine::Verdict own) const override {
    return left_-- == 0 ? std::max(own, engine::Verdict::kRedoSmaller) : own;
  }

 private:
  mutable int64_t left_;
};

TEST_F(OomGuardTest, AStepThatFailedInAnotherProcessIsDoneAgainAsItWas) {
  SmallTraining alone;
  const auto wanted = alone.steps(2);
  for (const int64_t call : {0, 1}) {  // after the passes; after the update was prepared
    const OneOfTwo consensus(call);
    SmallTraining training(4, {}, consensus);
    EXPECT_EQ(training.step(), wanted[0]) << call;
    EXPECT_EQ(training.done().failed_attempts, 1);
    ASSERT_EQ(training.tried().size(), 1U);
    EXPECT_EQ(training.tried()[0], training.done().layout) << "no smaller than before";
    EXPECT_EQ(training.step(), wanted[1]) << call;
    EXPECT_EQ(training.done().failed_attempts, 0);
  }
}

/// Says that the other process has a sample that does not fit, whenever it is asked how the next attempt is to be.
class HopelessElsewhere : public engine::Consensus {
 public:
  engine::Verdict worst(engine::Verdict own) const override {
    return ++calls_ == 1 ? engine::Verdict::kRedoSmaller : std::max(own, engine::Verdict::kLeaveOut);
  }

 private:
  mutable int64_t calls_ = 0;
};

TEST_F(OomGuardTest, ASampleThatDoesNotFitElsewhereEndsTheStepHereToo) {
  const HopelessElsewhere consensus;
  SmallTraining training(4, {}, consensus);
  try {
    training.step();
    FAIL();
  } catch (const SampleDoesNotFit& error) {
    EXPECT_FALSE(error.place()) << "it is none of this process";
  }
}

TEST_F(OomGuardTest, GoesFromHalvesToRecomputationToSingles) {
  SmallTraining training(4);
  training.step();
  // No room for anything: each attempt fails with its first allocation.
  faults_.arm({.limit_bytes = 0});
  EXPECT_THROW(training.step(), SampleDoesNotFit);
  faults_.disarm();
  ASSERT_EQ(training.tried().size(), 3U);
  EXPECT_THAT(training.tried()[0].cut.sizes, testing::ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(training.tried()[0].recompute.language, 0);
  EXPECT_THAT(training.tried()[1].cut.sizes, testing::ElementsAre(2, 2, 2, 2));
  EXPECT_GT(training.tried()[1].recompute.language, 0);
  EXPECT_THAT(training.tried()[2].cut.sizes, testing::ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST_F(OomGuardTest, NamesTheSampleThatDoesNotFitAlone) {
  SmallTraining training(1);
  training.step();
  faults_.arm({});
  training.step();
  const int64_t held = faults_.live_bytes();
  const int64_t most = faults_.peak_bytes();
  const auto& samples = training.samples();
  const auto largest = std::max_element(samples.begin(), samples.end(), [](const auto& left, const auto& right) {
    return left.tokens() < right.tokens();
  });
  std::optional<int64_t> named;
  for (int64_t share = 19; !named && share >= 0; --share) {
    faults_.arm({.limit_bytes = held + share * (most - held) / 20});
    try {
      training.step();
    } catch (const SampleDoesNotFit& error) {
      named = error.place();
    }
  }
  faults_.disarm();
  EXPECT_EQ(named, std::distance(samples.begin(), largest));
}

}  // namespace
}  // namespace vlmtrain::train
