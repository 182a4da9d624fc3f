// Formats of master weights: split and stochastic.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/optimizer_run.h"

namespace vlmtrain::engine {
namespace {

/// Checks that the tensors are equal, except for the few masters that were ties: they differ by some
/// ulps of fp32, and their weights by at most one of bf16.
void expect_equal_except_ties(const TensorsByName& actual, const TensorsByName& expected) {
  constexpr int64_t kMaxTies = 10;  // of 8,192 elements in 20 steps; 1.25 are expected
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : actual) {
    const at::Tensor& other = expected.at(name);
    if (!name.starts_with("master.") && tensor.scalar_type() != at::kBFloat16) {
      EXPECT_TRUE(at::equal(tensor, other)) << name;
      continue;
    }
    const double tolerance = tensor.scalar_type() == at::kFloat ? 0x1p-20 : 0x1p-7;
    const at::Tensor difference = (tensor.to(at::kDouble) - other.to(at::kDouble)).abs();
    EXPECT_LE(difference.ne(0).sum().item<int64_t>(), kMaxTies) << name;
    EXPECT_TRUE(difference.le(other.to(at::kDouble).abs() * tolerance).all().item<bool>()) << name;
  }
}

/// All start with equal weights and have equal gradients.
class MasterRun : public OptimizerRun {
 public:
  explicit MasterRun(const OptimizerSettings& settings) : OptimizerRun(/*seed=*/3, settings) {}
};

class MasterWeightFormats : public testing::TestWithParam<OptimizerStateDtype> {
 protected:
  static OptimizerSettings make_settings(MasterWeights master_weights) {
    return {.weight_decay = 0.1, .state_dtype = GetParam(), .master_weights = master_weights};
  }
};

TEST_P(MasterWeightFormats, SplitEqualsFp32) {
  MasterRun fp32(make_settings(MasterWeights::kFp32)), split(make_settings(MasterWeights::kSplit));
  for (auto* run : {&fp32, &split}) run->take_steps(0, 20);
  expect_equal_except_ties(split.copy_weights(), fp32.copy_weights());
  expect_equal_except_ties(split.copy_state(), fp32.copy_state());
}

TEST_P(MasterWeightFormats, SplitAndFp32ResumeFromEachOther) {
  MasterRun expected(make_settings(MasterWeights::kFp32));
  expected.take_steps(0, 6);
  for (const auto& [first, second] :
       {std::pair{MasterWeights::kFp32, MasterWeights::kSplit}, {MasterWeights::kSplit, MasterWeights::kFp32}}) {
    MasterRun first_run(make_settings(first)), resumed(make_settings(second));
    first_run.take_steps(0, 3);
    resumed.set_weights(first_run);
    resumed.optimizer().load_state(first_run.copy_state(), "a checkpoint");
    expect_equal_tensors(resumed.copy_weights(), first_run.copy_weights());
    resumed.take_steps(3, 3);
    expect_equal_except_ties(resumed.copy_weights(), expected.copy_weights());
    expect_equal_except_ties(resumed.copy_state(), expected.copy_state());
  }
}

TEST_P(MasterWeightFormats, StochasticRunsResumeBitExactly) {
  const auto settings = make_settings(MasterWeights::kStochastic);
  MasterRun expected(settings), first_run(settings), resumed(settings);
  expected.take_steps(0, 6);
  first_run.take_steps(0, 3);
  resumed.set_weights(first_run);
  resumed.optimizer().load_state(first_run.copy_state(), "a checkpoint");
  resumed.take_steps(3, 3);
  expect_equal_tensors(resumed.copy_weights(), expected.copy_weights());
  expect_equal_tensors(resumed.copy_state(), expected.copy_state());
}

TEST_P(MasterWeightFormats, StochasticHasMastersOfSmallTensorsOnly) {
  MasterRun run(make_settings(MasterWeights::kStochastic));
  const TensorsByName state = run.copy_state();
  EXPECT_FALSE(state.contains("master.vision.large"));
  EXPECT_TRUE(state.contains("master.vision.vector"));
  EXPECT_TRUE(state.contains("updates"));
}

TEST_P(MasterWeightFormats, StochasticLoadsMastersAndIgnoresMissingOnes) {
  MasterRun fp32(make_settings(MasterWeights::kFp32)), rounded(make_settings(MasterWeights::kStochastic));
  fp32.take_steps(0, 3);
  rounded.set_weights(fp32);
  TensorsByName state = fp32.copy_state();
  state["updates"] = at::full({}, 3, at::kLong);
  state.erase("master.vision.vector");
  rounded.optimizer().load_state(state, "a checkpoint");
  expect_equal_tensors(rounded.copy_weights(), fp32.copy_weights());
}

INSTANTIATE_TEST_SUITE_P(Moments, MasterWeightFormats,
                         testing::Values(OptimizerStateDtype::kFp32, OptimizerStateDtype::kBf16,
                                         OptimizerStateDtype::k8Bit),
                         [](const auto& instance) { return "With_" + to_string(instance.param); });

/// Constant gradients move a weight by the learning rate per step, far less than the distance of bf16
/// numbers.
TEST(StochasticWeights, KeepSmallUpdates) {
  constexpr int kSteps = 400;
  constexpr double kRate = 1e-5, kDistance = 0x1p-8;  // of bf16 numbers below 1
  const auto train = [](MasterWeights master_weights) {
    nn::ParameterStore store(at::TensorOptions(at::kBFloat16));
    const nn::ParameterScope scope(store, nn::Component::kProjector, "model");
    const at::Tensor weight = scope.add_parameter("weight", {64, 64}, nn::InitialValues::ones());
    weight.detach().fill_(1);
    BucketedOptimizer optimizer(store, {.max_grad_norm = 0, .master_weights = master_weights});
    for (int i = 0; i < kSteps; ++i) {
      add_gradient(weight, at::full({64, 64}, 1.0));
      optimizer.step({.projector = kRate});
    }
    return 1 - weight.detach().to(at::kDouble).mean().item<double>();
  };
  // Each step rounds down with probability kRate / kDistance, so a weight has kSteps of these coins.
  const double expected = kSteps * kRate, share = kRate / kDistance;
  const double deviation = kDistance * std::sqrt(kSteps * share / (64 * 64));
  EXPECT_NEAR(train(MasterWeights::kStochastic), expected, 5 * deviation);
  EXPECT_NEAR(train(MasterWeights::kSplit), train(MasterWeights::kFp32), 0);
}

}  // namespace
}  // namespace vlmtrain::engine
