#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"
#include "vlmtrain/engine/optimizer/optimizer.h"

namespace vlmtrain::engine {
namespace {

std::vector<double> collect_scales(const LossScaleSettings& settings, const std::vector<int>& skipped) {
  LossScale scale(settings, at::TensorOptions());
  std::vector<double> values;
  for (const int skip : skipped) {
    scale.update(at::scalar_tensor(static_cast<double>(skip)));
    values.push_back(scale.value().item<double>());
  }
  return values;
}

TEST(LossScale, HalvesWithAnOverflowAndDoublesAfterSoManyStepsWithoutOne) {
  EXPECT_EQ(collect_scales({.init_scale = 8, .growth_interval = 3}, {1, 0, 0, 1, 0, 0, 0, 0, 0, 0}),
            (std::vector<double>{4, 4, 4, 2, 2, 2, 4, 4, 4, 8}));
}

TEST(LossScale, StaysWhereItIsFixed) {
  EXPECT_EQ(collect_scales({.init_scale = 128, .dynamic = false, .growth_interval = 1}, {1, 0, 0}),
            (std::vector<double>{128, 128, 128}));
}

TEST(LossScale, ChangesNeitherNormNorUpdate) {
  Parameters scaled, plain;
  plain.copy_from(scaled);
  BucketedOptimizer scaled_optimizer(scaled.store(), {.loss_scale = LossScaleSettings{.init_scale = 4096}});
  BucketedOptimizer plain_optimizer(plain.store(), {});
  for (uint64_t step = 0; step < 4; ++step) {
    const double magnitude = step % 2 == 0 ? 3.0 : 0.01;  // alternately clipped and not
    add_gradients(scaled, random_gradients(scaled, step, magnitude * 4096));
    add_gradients(plain, random_gradients(plain, step, magnitude));
    const double norm = plain_optimizer.step({0.1, 0.1, 0.1}).item<double>();
    EXPECT_NEAR(scaled_optimizer.step({0.1, 0.1, 0.1}).item<double>(), norm, 1e-6 * norm);
  }
  for (const auto& parameter : plain.store().all()) {
    const at::Tensor difference = parameter.tensor.detach() - scaled.tensor(parameter.name).detach();
    EXPECT_LT(difference.abs().max().item<double>(), 1e-6) << parameter.name;
  }
}

TEST(LossScale, FollowsTheOptimizersOverflows) {
  Parameters parameters(at::kHalf);
  BucketedOptimizer optimizer(parameters.store(),
                              {.loss_scale = LossScaleSettings{.init_scale = 65536, .growth_interval = 2}});
  const auto step = [&](double gradient) {
    add_gradient(parameters.tensor("language.vector"), at::full({7}, gradient));
    optimizer.step({});
    return optimizer.loss_scale().item<double>();
  };
  EXPECT_EQ(step(1e6), 32768);  // infinite in fp16
  EXPECT_EQ(step(1), 32768);
  EXPECT_EQ(step(1), 65536);
  EXPECT_EQ(step(std::numeric_limits<double>::infinity()), 32768);
}

TEST(LossScale, OfTheStepIsThatBeforeItsUpdate) {
  Parameters parameters(at::kHalf);
  BucketedOptimizer optimizer(parameters.store(), {.loss_scale = LossScaleSettings{.init_scale = 16}});
  const auto update = optimizer.prepare(at::scalar_tensor(std::numeric_limits<double>::infinity()));
  optimizer.apply_update(update, {});
  EXPECT_EQ(update.loss_scale.item<double>(), 16);
  EXPECT_EQ(optimizer.loss_scale().item<double>(), 8);
}

TEST(LossScale, IsPartOfTheOptimizersState) {
  Parameters parameters(at::kHalf), others(at::kHalf);
  const OptimizerSettings settings{.loss_scale = LossScaleSettings{.init_scale = 16, .growth_interval = 2}};
  BucketedOptimizer optimizer(parameters.store(), settings), resumed(others.store(), settings);
  optimizer.step({});
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : read_tensors(optimizer.state())) saved[name] = tensor.clone();
  resumed.load_state(saved, "a checkpoint");
  resumed.step({});
  EXPECT_EQ(resumed.loss_scale().item<double>(), 32) << "the good step before the checkpoint was forgotten";
}

}  // namespace
}  // namespace vlmtrain::engine
