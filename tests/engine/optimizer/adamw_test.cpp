#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/optimizer/optimizer.h"

namespace vlmtrain::engine {
namespace {

using nn::Component;
using testing::AllOf;
using testing::HasSubstr;

/// AdamW as in its paper, elementwise in fp64.
class ReferenceAdamW {
 public:
  ReferenceAdamW(Parameters& parameters, OptimizerSettings settings) : settings_(settings) {
    for (const auto& parameter : parameters.store().all()) {
      const at::Tensor weight = parameter.tensor.detach().to(at::kDouble).clone();
      states_[parameter.name] = {parameter.component, weight, at::zeros_like(weight), at::zeros_like(weight), 0};
    }
  }

  double step(const std::map<std::string, at::Tensor>& gradients, const LearningRates& rates) {
    double squares = 0;
    for (const auto& [name, gradient] : gradients) squares += gradient.to(at::kDouble).square().sum().item<double>();
    const double norm = std::sqrt(squares);
    const bool is_clipped = settings_.max_grad_norm > 0 && norm > settings_.max_grad_norm;
    for (const auto& [name, gradient] : gradients) {
      State& state = states_.at(name);
      const at::Tensor g = gradient.to(at::kDouble) * (is_clipped ? settings_.max_grad_norm / norm : 1.0);
      const double rate = rates.get_learning_rate(state.component);
      ++state.steps;
      state.first = state.first * settings_.adamw.beta1 + g * (1 - settings_.adamw.beta1);
      state.second = state.second * settings_.adamw.beta2 + g.square() * (1 - settings_.adamw.beta2);
      const at::Tensor first = state.first / (1 - std::pow(settings_.adamw.beta1, state.steps));
      const at::Tensor second = state.second / (1 - std::pow(settings_.adamw.beta2, state.steps));
      const double decay = state.weight.dim() >= 2 ? settings_.weight_decay : 0.0;
      state.weight = state.weight * (1 - rate * decay) - first / (second.sqrt() + settings_.adamw.epsilon) * rate;
    }
    return norm;
  }

  const at::Tensor& weight(const std::string& name) const { return states_.at(name).weight; }

 private:
  struct State {
    Component component;
    at::Tensor weight, first, second;
    int64_t steps;
  };
  OptimizerSettings settings_;
  std::map<std::string, State> states_;
};

struct SettingsCase {
  const char* name;
  OptimizerSettings settings;
};

class AdamWFormula : public testing::TestWithParam<SettingsCase> {};

TEST_P(AdamWFormula, MatchesTheReferenceOverSeveralSteps) {
  at::manual_seed(1);
  Parameters parameters;
  ReferenceAdamW reference(parameters, GetParam().settings);
  BucketedOptimizer optimizer(parameters.store(), GetParam().settings);
  for (uint64_t step = 0; step < 6; ++step) {
    const LearningRates rates{1e-2 * static_cast<double>(step + 1), 3e-2, 1e-1};
    const auto gradients = random_gradients(parameters, step, step % 2 == 0 ? 2.0 : 0.05);
    add_gradients(parameters, gradients);
    const double expected_norm = reference.step(gradients, rates);
    EXPECT_NEAR(optimizer.step(rates).item<double>(), expected_norm, 1e-6 * expected_norm);
    for (const auto& parameter : parameters.store().all()) {
      const at::Tensor difference = parameter.tensor.detach().to(at::kDouble) - reference.weight(parameter.name);
      EXPECT_LT(difference.abs().max().item<double>(), 2e-6) << parameter.name << ", step " << step;
      EXPECT_FALSE(parameter.tensor.grad().defined()) << "the gradient outlives its step";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, AdamWFormula,
                         testing::Values(SettingsCase{"Defaults", {}}, SettingsCase{"Decay", {.weight_decay = 0.3}},
                                         SettingsCase{"NoClipping", {.weight_decay = 0.1, .max_grad_norm = 0}},
                                         SettingsCase{"OtherConstants",
                                                      {.adamw = {.beta1 = 0.5, .beta2 = 0.9, .epsilon = 1e-3},
                                                       .max_grad_norm = 0.5}}),
                         [](const auto& instance) { return instance.param.name; });

TEST(AdamW, DecaysMatricesOnly) {
  Parameters parameters;
  const at::Tensor matrix = parameters.tensor("projector.matrix").detach().clone();
  const at::Tensor vector = parameters.tensor("projector.vector").detach().clone();
  BucketedOptimizer optimizer(parameters.store(), {.weight_decay = 0.5});
  for (const char* name : {"projector.matrix", "projector.vector"})
    add_gradient(parameters.tensor(name), at::zeros_like(parameters.tensor(name).detach()));
  optimizer.step({.projector = 0.1});
  EXPECT_LT((parameters.tensor("projector.matrix").detach() - matrix * 0.95).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(at::equal(parameters.tensor("projector.vector").detach(), vector));
}

TEST(AdamW, UsesTheLearningRateOfTheComponent) {
  Parameters parameters, initial;
  initial.copy_from(parameters);
  BucketedOptimizer optimizer(parameters.store(), {.max_grad_norm = 0});
  for (const auto& parameter : parameters.store().all())
    add_gradient(parameter.tensor, at::ones(parameter.tensor.sizes()));
  optimizer.step({.vision_tower = 0.0, .projector = 0.01, .language_model = 0.1});
  for (const auto& parameter : parameters.store().all()) {
    const double rate = LearningRates{0.0, 0.01, 0.1}.get_learning_rate(parameter.component);
    const at::Tensor update = initial.tensor(parameter.name).detach() - parameter.tensor.detach();
    EXPECT_LT((update - rate).abs().max().item<double>(), 1e-6)
        << parameter.name;  // the first step has the size of the rate
  }
}

TEST(AdamW, ParameterWithoutGradientIsUnchanged) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Parameters parameters(dtype), initial(dtype);
    initial.copy_from(parameters);
    BucketedOptimizer optimizer(parameters.store(), {.weight_decay = 0.5});
    add_gradient(parameters.tensor("language.matrix"), at::ones({3, 5}));
    EXPECT_FALSE(optimizer.gradient_buckets.sum("vision.matrix").defined());
    optimizer.step({0.1, 0.1, 0.1});
    for (const auto& parameter : parameters.store().all()) {
      const bool is_same = at::equal(parameter.tensor.detach(), initial.tensor(parameter.name).detach());
      EXPECT_EQ(is_same, parameter.name != "language.matrix") << parameter.name;
    }
    // In order of construction, language.matrix is the fifth.
    const auto state = read_tensors(optimizer.state());
    EXPECT_EQ(state[0].first, "steps");
    EXPECT_EQ(state[0].second.sum().item<double>(), 1.0);
    EXPECT_EQ(state[0].second[4].item<double>(), 1.0);
    for (const auto& [name, tensor] : state) {
      if (name.find("moment.vision") == std::string::npos) continue;
      EXPECT_EQ(tensor.abs().sum().item<double>(), 0.0) << name;
    }
  }
}

TEST(AdamW, StepWithoutGradientsChangesNothing) {
  Parameters parameters, initial;
  initial.copy_from(parameters);
  BucketedOptimizer optimizer(parameters.store(), {.weight_decay = 0.5});
  EXPECT_EQ(optimizer.step({0.1, 0.1, 0.1}).item<double>(), 0.0);
  for (const auto& parameter : parameters.store().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor.detach(), initial.tensor(parameter.name).detach())) << parameter.name;
  }
}

TEST(AdamW, FrozenParametersAreExcluded) {
  Parameters parameters;
  for (const auto& parameter : parameters.store().all())
    parameter.tensor.set_requires_grad(parameter.component == Component::kProjector);
  const BucketedOptimizer optimizer(parameters.store(), {});
  EXPECT_EQ(optimizer.count_trained_elements(), 3 * 5 + 7);
  EXPECT_EQ(optimizer.state().size(), 1U + 2 * 2);
  EXPECT_THROW(optimizer.gradient_buckets.sum("vision.matrix"), InternalError);
}

TEST(AdamW, DiscardedGradientsAreIgnored) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Parameters parameters(dtype);
    BucketedOptimizer optimizer(parameters.store(), {});
    const auto& vector = parameters.tensor("vision.vector");
    add_gradient(vector, at::ones({7}) * 100);
    optimizer.gradient_buckets.reset();
    EXPECT_FALSE(optimizer.gradient_buckets.sum("vision.vector").defined());
    add_gradient(vector, at::ones({7}));
    EXPECT_TRUE(at::equal(optimizer.gradient_buckets.sum("vision.vector"), at::ones({7})));
  }
}

TEST(AdamWWith16BitWeights, GradientsOfMicroBatchesAddUpInFp32) {
  Parameters parameters(at::kBFloat16);
  BucketedOptimizer optimizer(parameters.store(), {});
  const auto& vector = parameters.tensor("language.vector");
  // bf16 has 8 significant bits: 256 + 1 remains 256.
  add_gradient(vector, at::ones({7}) * 256);
  for (int i = 0; i < 9; ++i) add_gradient(vector, at::ones({7}));
  EXPECT_FALSE(vector.grad().defined()) << "the 16-bit gradient is kept beside its sum";
  EXPECT_EQ(optimizer.gradient_buckets.sum("language.vector").scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(optimizer.gradient_buckets.sum("language.vector"), at::ones({7}) * 265));
  EXPECT_FLOAT_EQ(optimizer.step({0, 0, 0}).item<float>(), 265.0F * std::sqrt(7.0F));
}

TEST(AdamWWith16BitWeights, MastersFollowTheFormulaAndWeightsAreThemRounded) {
  at::manual_seed(2);
  Parameters parameters(at::kBFloat16);
  const OptimizerSettings settings{.weight_decay = 0.1};
  ReferenceAdamW reference(parameters, settings);
  BucketedOptimizer optimizer(parameters.store(), settings);
  const LearningRates rates{1e-4, 1e-4, 1e-4};  // below the precision of bf16 weights, which alone would never change
  for (uint64_t step = 0; step < 8; ++step) {
    auto gradients = random_gradients(parameters, step, 1.0);
    for (auto& [name, gradient] : gradients) gradient = gradient.to(at::kBFloat16).to(at::kFloat);
    add_gradients(parameters, gradients);
    reference.step(gradients, rates);
    optimizer.step(rates);
  }
  for (const auto& [name, master] : read_tensors(optimizer.state())) {
    if (!name.starts_with("master.")) continue;
    const std::string parameter = name.substr(std::string("master.").size());
    EXPECT_EQ(master.scalar_type(), at::kFloat);
    EXPECT_LT((master.to(at::kDouble) - reference.weight(parameter)).abs().max().item<double>(), 1e-6) << name;
    EXPECT_TRUE(at::equal(parameters.tensor(parameter).detach(), master.to(at::kBFloat16))) << name;
    EXPECT_FALSE(at::equal(master, master.to(at::kBFloat16).to(at::kFloat))) << name << " has lost its low bits";
  }
}

TEST(AdamWWith16BitWeights, WeightOutlivesItsOptimizer) {
  Parameters parameters(at::kBFloat16);
  { const BucketedOptimizer optimizer(parameters.store(), {}); }
  add_gradient(parameters.tensor("vision.vector"), at::ones({7}));
  EXPECT_TRUE(parameters.tensor("vision.vector").grad().defined()) << "the hook of the optimizer is still there";
}

class AdamWState : public testing::TestWithParam<at::ScalarType> {
 protected:
};

TEST_P(AdamWState, ResumedRunIsBitExact) {
  const OptimizerSettings settings{.weight_decay = 0.1};
  const LearningRates rates{1e-3, 2e-3, 3e-3};
  const auto run = [&](Parameters& parameters, Optimizer& optimizer, uint64_t first, uint64_t last) {
    for (uint64_t step = first; step < last; ++step) {
      auto gradients = random_gradients(parameters, step, 1.0);
      if (step == 1) gradients.erase("vision.matrix");  // the step counters differ from now on
      add_gradients(parameters, gradients);
      optimizer.step(rates);
    }
  };
  Parameters parameters(GetParam()), resumed(GetParam());
  BucketedOptimizer optimizer(parameters.store(), settings);
  run(parameters, optimizer, 0, 3);
  // A checkpoint has the weights in the model's dtype, and this state.
  resumed.copy_from(parameters);
  const auto saved = copy_tensors(optimizer.state());
  run(parameters, optimizer, 3, 6);

  BucketedOptimizer second(resumed.store(), settings);
  second.load_state(saved, "a checkpoint");
  run(resumed, second, 3, 6);
  for (const auto& parameter : parameters.store().all())
    EXPECT_TRUE(at::equal(resumed.tensor(parameter.name), parameter.tensor)) << parameter.name;
  const auto expected = copy_tensors(optimizer.state());
  for (const auto& [name, tensor] : read_tensors(second.state()))
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

TEST_P(AdamWState, InvalidStateIsRejectedByName) {
  Parameters parameters(GetParam());
  BucketedOptimizer optimizer(parameters.store(), {});
  const auto valid_state = copy_tensors(optimizer.state());
  const auto message = [&](const std::map<std::string, at::Tensor>& state) -> std::string {
    try {
      optimizer.load_state(state, "run/step-3");
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    return "nothing was thrown";
  };
  auto state = valid_state;
  state.erase("second_moment.projector.vector");
  EXPECT_THAT(message(state), AllOf(HasSubstr("run/step-3"), HasSubstr("second_moment.projector.vector is missing")));
  state = valid_state;
  state["first_moment.language.matrix"] = at::ones({5, 3});
  EXPECT_THAT(message(state), HasSubstr("first_moment.language.matrix has a different shape"));
  state = valid_state;
  state["first_moment.lm_head.weight"] = at::ones({1});
  EXPECT_THAT(message(state), AllOf(HasSubstr("first_moment.lm_head.weight"), HasSubstr("run/step-3")));
}

TEST_P(AdamWState, MigratesWhereSettingsChanged) {
  const LearningRates rates{1e-2, 1e-2, 1e-2};
  const auto freeze = [](Parameters& parameters, const std::string& part, bool is_frozen) {
    for (const auto& parameter : parameters.store().all()) {
      if (parameter.name.starts_with(part)) parameter.tensor.set_requires_grad(!is_frozen);
    }
  };
  const auto add = [](Parameters& parameters, uint64_t step) {
    for (const auto& [name, gradient] : random_gradients(parameters, step, 0.1)) {
      if (parameters.tensor(name).requires_grad()) add_gradient(parameters.tensor(name), gradient);
    }
  };
  Parameters first(GetParam());
  freeze(first, "vision", true);
  BucketedOptimizer optimizer(first.store(), {});
  for (uint64_t step = 0; step < 3; ++step) {
    add(first, step);
    // The projector's matrix has no gradient in the last step, so step counters differ.
    if (step == 2) optimizer.gradient_buckets.reset();
    if (step == 2) add_gradient(first.tensor("language.vector"), at::ones({7}));
    optimizer.step(rates);
  }
  const auto saved = copy_tensors(optimizer.state());

  // From now on the vision tower is trained and the projector is not.
  Parameters second(GetParam());
  second.copy_from(first);
  freeze(second, "projector", true);
  BucketedOptimizer changed(second.store(), {});
  const StateMigrationResult migrated = changed.migrate_state(second.store(), saved, "run/step-3");
  EXPECT_EQ(migrated.num_migrated_parameters, 2);
  EXPECT_EQ(migrated.num_reset_parameters, 2);
  for (const auto& [name, tensor] : read_tensors(changed.state())) {
    if (name == "steps") {
      EXPECT_TRUE(at::equal(tensor, at::tensor({0.0F, 0.0F, 2.0F, 3.0F}))) << tensor;
    } else if (saved.contains(name)) {
      EXPECT_TRUE(at::equal(tensor, saved.at(name))) << name;
    } else if (!name.starts_with("master.")) {
      EXPECT_EQ(tensor.abs().max().item<double>(), 0) << name;
    }
  }
  // Migrated tensors are updated as without the change.
  for (auto* const parameters : {&first, &second}) {
    add_gradient(parameters->tensor("language.vector"), at::ones({7}));
    (parameters == &first ? optimizer : changed).step(rates);
  }
  EXPECT_TRUE(at::equal(first.tensor("language.vector"), second.tensor("language.vector")));
}

TEST_P(AdamWState, OtherTypesAreResetAndOtherCountsRejected) {
  Parameters parameters(GetParam(), /*large=*/true);
  BucketedOptimizer optimizer(parameters.store(), {});
  add_gradients(parameters, random_gradients(parameters, 0, 0.1));
  optimizer.step({1e-2, 1e-2, 1e-2});
  auto saved = copy_tensors(optimizer.state());
  Optimizer compressed(parameters.store(), optimizer.gradient_buckets, {.state_dtype = OptimizerStateDtype::k8Bit});
  const StateMigrationResult migrated = compressed.migrate_state(parameters.store(), saved, "run/step-1");
  EXPECT_EQ(migrated.num_migrated_parameters, 12) << "the small ones, which are in fp32 always";
  EXPECT_EQ(migrated.num_reset_parameters, 6);
  const auto state = copy_tensors(compressed.state());
  EXPECT_EQ(state.at("steps").sum().item<double>(), 12);
  EXPECT_TRUE(at::equal(state.at("first_moment.vision.matrix"), saved.at("first_moment.vision.matrix")));
  saved["steps"] = at::ones({3});
  try {
    compressed.migrate_state(parameters.store(), saved, "run/step-1");
    FAIL() << "steps of which tensors?";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("run/step-1"), HasSubstr("18 moments")));
  }
}

/// The saved master of a 16-bit weight counts, not the rounded weight.
TEST(AdamWMigration, MastersMigrateToAnotherPrecision) {
  Parameters wide(at::kFloat), narrow(at::kBFloat16);
  narrow.copy_from(wide);
  BucketedOptimizer wide_optimizer(wide.store(), {}), narrow_optimizer(narrow.store(), {});
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : read_tensors(wide_optimizer.state())) saved.emplace(name, tensor.clone());
  for (const auto& [name, master] : read_tensors(wide_optimizer.master_weights()))
    saved.emplace("master." + name, master.clone());
  EXPECT_EQ(narrow_optimizer.migrate_state(narrow.store(), saved, "run/step-0").num_reset_parameters, 0);
  for (const auto& [name, master] : read_tensors(narrow_optimizer.master_weights()))
    EXPECT_TRUE(at::equal(master, wide.tensor(name))) << name;
}

TEST(AdamWMigration, LossScaleMigratesUnlessStatic) {
  const auto migrate_loss_scale = [](const LossScaleSettings& settings) {
    Parameters parameters;
    BucketedOptimizer first_optimizer(parameters.store(), {.loss_scale = LossScaleSettings{.init_scale = 128}});
    std::map<std::string, at::Tensor> saved;
    for (const auto& [name, tensor] : read_tensors(first_optimizer.state())) saved.emplace(name, tensor.clone());
    Optimizer second_optimizer(parameters.store(), first_optimizer.gradient_buckets, {.loss_scale = settings});
    second_optimizer.migrate_state(parameters.store(), saved, "run/step-0");
    return second_optimizer.loss_scale().item<double>();
  };
  EXPECT_EQ(migrate_loss_scale({.init_scale = 65536, .dynamic = true}), 128);
  EXPECT_EQ(migrate_loss_scale({.init_scale = 64, .dynamic = false}), 64);
}

INSTANTIATE_TEST_SUITE_P(Types, AdamWState, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& instance) { return instance.param == at::kFloat ? "Fp32" : "Bf16"; });

}  // namespace
}  // namespace vlmtrain::engine
