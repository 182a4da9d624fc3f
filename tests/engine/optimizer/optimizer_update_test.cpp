#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/host_allocations.h"
#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"

namespace vlmtrain::engine {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr LearningRates kRates{1e-2, 1e-2, 1e-2};

/// Copies everything that a step may change, by name.
std::map<std::string, at::Tensor> copy_everything(Parameters& parameters, const Optimizer& optimizer) {
  auto copy = copy_tensors(optimizer.state());
  for (const auto& parameter : parameters.store().all()) copy[parameter.name] = parameter.tensor.detach().clone();
  return copy;
}

struct UpdateCase {
  const char* name;
  at::ScalarType dtype;
  OptimizerSettings settings;
};

class Update : public testing::TestWithParam<UpdateCase> {
 protected:
  void add(uint64_t step) { add_gradients(parameters_, random_gradients(parameters_, step, scale())); }
  double scale() const { return optimizer_.loss_scale().defined() ? optimizer_.loss_scale().item<double>() : 1.0; }
  /// Returns whether a skipped step changes this tensor as well.
  static bool counts_skipped_steps(const std::string& name) {
    return name.starts_with("loss_scale") || name == "updates";
  }

  static constexpr bool kLarge = true;
  Parameters parameters_{GetParam().dtype, kLarge};
  BucketedOptimizer optimizer_{parameters_.store(), GetParam().settings};
};

TEST_P(Update, PrepareAndApplyEqualStep) {
  Parameters other_parameters(GetParam().dtype, kLarge);
  other_parameters.copy_from(parameters_);
  BucketedOptimizer other_optimizer(other_parameters.store(), GetParam().settings);
  for (uint64_t step = 0; step < 3; ++step) {
    add(step);
    add_gradients(other_parameters, random_gradients(other_parameters, step, scale()));
    const auto update = optimizer_.prepare(at::scalar_tensor(0.5));
    EXPECT_EQ(update.skipped.item<double>(), 0.0);
    optimizer_.apply_update(update, kRates);
    EXPECT_EQ(other_optimizer.step(kRates).item<double>(), update.grad_norm.item<double>());
  }
  const auto expected = copy_everything(other_parameters, other_optimizer);
  for (const auto& [name, tensor] : copy_everything(parameters_, optimizer_)) {
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  }
}

TEST_P(Update, PreparingChangesNothing) {
  add(0);
  optimizer_.step(kRates);
  const auto state_before = copy_everything(parameters_, optimizer_);
  add(1);
  const at::Tensor gradient = optimizer_.gradient_buckets.sum("vision.matrix").clone();
  optimizer_.prepare(at::scalar_tensor(0.5));
  const auto update = optimizer_.prepare(at::scalar_tensor(0.5));
  for (const auto& [name, tensor] : copy_everything(parameters_, optimizer_)) {
    EXPECT_TRUE(at::equal(tensor, state_before.at(name))) << name;
  }
  EXPECT_TRUE(at::equal(optimizer_.gradient_buckets.sum("vision.matrix"), gradient));
  optimizer_.apply_update(update, kRates);
  EXPECT_FALSE(at::equal(parameters_.tensor("vision.matrix").detach(), state_before.at("vision.matrix")));
}

TEST_P(Update, ResumesBitExactly) {
  Parameters other_parameters(GetParam().dtype, kLarge);
  const auto step = [](Parameters& parameters, Optimizer& optimizer, uint64_t number) {
    auto gradients = random_gradients(parameters, number, 1.0);
    if (number == 1) gradients.erase("vision.large");  // the step counters differ from now on
    add_gradients(parameters, gradients);
    optimizer.step(kRates);
  };
  for (uint64_t number = 0; number < 3; ++number) step(parameters_, optimizer_, number);
  other_parameters.copy_from(parameters_);
  BucketedOptimizer other_optimizer(other_parameters.store(), GetParam().settings);
  other_optimizer.load_state(copy_tensors(optimizer_.state()), "a checkpoint");
  for (uint64_t number = 3; number < 6; ++number) {
    step(parameters_, optimizer_, number);
    step(other_parameters, other_optimizer, number);
  }
  const auto expected = copy_everything(parameters_, optimizer_);
  for (const auto& [name, tensor] : copy_everything(other_parameters, other_optimizer))
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

TEST_P(Update, ApplyingAllocatesNothing) {
  const HostAllocations all;
  for (uint64_t step = 0; step < 3; ++step) {
    add(step);
    const auto update = optimizer_.prepare(at::scalar_tensor(0.5));
    const HostAllocations allocations;
    optimizer_.apply_update(update, kRates);
    EXPECT_EQ(allocations.count(), 0) << "step " << step;
  }
  EXPECT_GT(all.count(), 0) << "nothing is counted";
}

TEST_P(Update, IsSkippedWhereLossOrGradientIsNotFinite) {
  add(0);
  optimizer_.step(kRates);
  const auto state_before = copy_everything(parameters_, optimizer_);
  for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
    for (const bool in_loss : {true, false}) {
      SCOPED_TRACE(testing::Message() << value << (in_loss ? " in the loss" : " in a gradient"));
      add(1);
      if (!in_loss) add_gradient(parameters_.tensor("projector.vector"), at::full({7}, value));
      const auto update = optimizer_.prepare(at::scalar_tensor(in_loss ? value : 0.5));
      EXPECT_EQ(update.skipped.item<double>(), 1.0);
      optimizer_.apply_update(update, kRates);
      for (const auto& [name, tensor] : copy_everything(parameters_, optimizer_)) {
        if (counts_skipped_steps(name)) continue;
        EXPECT_TRUE(at::equal(tensor, state_before.at(name))) << name;
      }
      EXPECT_FALSE(optimizer_.gradient_buckets.sum("vision.matrix").defined())
          << "gradients of a skipped step are dropped";
    }
  }
  // The next step is not affected by the skipped one.
  Parameters other_parameters(GetParam().dtype, kLarge);
  for (const auto& parameter : other_parameters.store().all())
    parameter.tensor.detach().copy_(state_before.at(parameter.name));
  BucketedOptimizer other_optimizer(other_parameters.store(), GetParam().settings);
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : read_tensors(optimizer_.state())) {
    state[name] = (name == "updates" ? tensor : state_before.at(name)).clone();
  }
  other_optimizer.load_state(state, "the state before");
  const double other_scale = other_optimizer.loss_scale().defined() ? other_optimizer.loss_scale().item<double>() : 1.0;
  add(2);
  add_gradients(other_parameters, random_gradients(other_parameters, 2, other_scale));
  optimizer_.step(kRates);
  other_optimizer.step(kRates);
  for (const auto& parameter : other_parameters.store().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor.detach(), parameters_.tensor(parameter.name).detach())) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Update,
    testing::Values(
        UpdateCase{"Fp32", at::kFloat, {.weight_decay = 0.1}},
        UpdateCase{"Fp32Unclipped", at::kFloat, {.max_grad_norm = 0}},
        UpdateCase{"Bf16", at::kBFloat16, {.weight_decay = 0.1}},
        UpdateCase{"Fp16", at::kHalf, {.loss_scale = LossScaleSettings{.init_scale = 1024}}},
        UpdateCase{"Bf16States", at::kBFloat16, {.state_dtype = OptimizerStateDtype::kBf16}},
        UpdateCase{"8BitStates", at::kBFloat16, {.weight_decay = 0.1, .state_dtype = OptimizerStateDtype::k8Bit}},
        UpdateCase{"Fp32With8BitStates", at::kFloat, {.state_dtype = OptimizerStateDtype::k8Bit}},
        UpdateCase{"Fp16With8BitStates",
                   at::kHalf,
                   {.loss_scale = LossScaleSettings{.init_scale = 1024}, .state_dtype = OptimizerStateDtype::k8Bit}},
        UpdateCase{"SplitMasters", at::kBFloat16, {.weight_decay = 0.1, .master_weights = MasterWeights::kSplit}},
        UpdateCase{"StochasticWeights", at::kBFloat16, {.master_weights = MasterWeights::kStochastic}},
        UpdateCase{"SplitMastersWith8BitStates",
                   at::kBFloat16,
                   {.state_dtype = OptimizerStateDtype::k8Bit, .master_weights = MasterWeights::kSplit}},
        UpdateCase{"StochasticWeightsWithBf16States",
                   at::kBFloat16,
                   {.state_dtype = OptimizerStateDtype::kBf16, .master_weights = MasterWeights::kStochastic}},
        UpdateCase{"Muon", at::kFloat, {.kind = OptimizerKind::kMuon, .weight_decay = 0.1}},
        UpdateCase{"MuonBf16", at::kBFloat16, {.kind = OptimizerKind::kMuon, .weight_decay = 0.1, .max_grad_norm = 0}},
        UpdateCase{
            "MuonFp16", at::kHalf, {.kind = OptimizerKind::kMuon, .loss_scale = LossScaleSettings{.init_scale = 1024}}},
        UpdateCase{
            "Fp16Unclipped", at::kHalf, {.max_grad_norm = 0, .loss_scale = LossScaleSettings{.init_scale = 1024}}}),
    [](const auto& instance) { return instance.param.name; });

TEST(ResettingGradients, ClearsGradientsOfAFailedBackwardPass) {
  Parameters parameters;
  BucketedOptimizer optimizer(parameters.store(), {});
  const at::Tensor& vector = parameters.tensor("vision.vector");
  vector.mutable_grad() = at::full({7}, 1.0);
  optimizer.gradient_buckets.reset();
  EXPECT_FALSE(vector.grad().defined());
}

}  // namespace
}  // namespace vlmtrain::engine
