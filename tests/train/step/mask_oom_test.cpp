#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/mask_samples.h"
#include "train/step/oom_guard.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/memory/allocation_tracking.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::train {

namespace {

using Gradients = std::map<std::string, at::Tensor>;

/// Full training of a small model that predicts masks, on six samples with one, two and no masks.
class MaskTraining {
 public:
  explicit MaskTraining(const models::MaskSamples& data) : samples_(data.samples()) {
    model_ = models::load_model(data.checkpoint(), at::kCPU, at::kFloat);
    training_ = std::make_unique<engine::TrainingState>(*model_, engine::OptimizerSettings{});
    guard_ = std::make_unique<OomGuard>(*training_, at::kCPU, consensus_,
                                        [](const std::string& /*reason*/, const engine::StepLayout& /*next*/) {});
    layout_.split = engine::split_evenly(std::ssize(samples_), 3);
  }

  double step() {
    const auto rates = [this] {
      std::jthread([this] { copy_gradients(); });  // allocations of another thread do not count
      return engine::LearningRates{1e-4, 1e-4, 1e-4, 1e-4};
    };
    completed_ = guard_->step(objective_, samples_, layout_, /*step_seed=*/5, rates);
    return completed_.result.loss.item<double>();
  }
  /// Returns the gradients before the optimizer's step.
  const Gradients& gradients() const { return gradients_; }
  int64_t num_failed_attempts() const { return completed_.num_failed_attempts; }

 private:
  void copy_gradients() {
    gradients_.clear();
    for (const auto& parameter : model_->parameters().all()) {
      if (!parameter.tensor.requires_grad()) continue;
      const at::Tensor sum = training_->gradient_buckets.sum(parameter.name);
      if (sum.defined()) gradients_[parameter.name] = sum.clone();
    }
  }

  const engine::Consensus consensus_;
  const engine::TextAndMasksObjective objective_{{}, {}};
  std::vector<data::Sample> samples_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::TrainingState> training_;
  std::unique_ptr<OomGuard> guard_;
  engine::StepLayout layout_;
  CompletedStep completed_;
  Gradients gradients_;
};

TEST(MaskOomTest, AnyFailingAllocationKeepsLossAndGradients) {
  constexpr int64_t kPoints = 16;
  const models::MaskSamples data;
  memory::AllocationFaultInjector faults;
  MaskTraining reference(data);
  reference.step();
  faults.arm({});
  const double loss = reference.step();
  const int64_t allocations = faults.num_allocations();
  faults.disarm();
  const Gradients expected = reference.gradients();
  double largest = 0;
  for (const auto& [name, gradient] : expected) largest = std::max(largest, gradient.abs().max().item<double>());
  ASSERT_GT(allocations, 1000);
  int64_t num_failed_attempts = 0;
  for (int64_t point = 0; point < kPoints; ++point) {
    MaskTraining training(data);
    training.step();
    faults.arm({.failing_allocation_index = point * (allocations - 1) / (kPoints - 1)});
    const double actual = training.step();
    EXPECT_EQ(faults.num_failed_allocations(), 1) << "point " << point;
    faults.disarm();
    num_failed_attempts += training.num_failed_attempts();
    EXPECT_NEAR(actual / loss, 1, 1e-5) << "point " << point;
    ASSERT_EQ(training.gradients().size(), expected.size());
    for (const auto& [name, gradient] : training.gradients()) {
      const double difference = (gradient - expected.at(name)).abs().max().item<double>();
      // Smaller micro-batches add gradients up in another order.
      EXPECT_LE(difference, 1e-5 * largest) << "point " << point << ", " << name;
    }
  }
  // On some processors oneDNN's convolutions choose another algorithm when memory runs out, without
  // an error.
  EXPECT_GE(num_failed_attempts, kPoints - 4);
}

}  // namespace

}  // namespace vlmtrain::train
