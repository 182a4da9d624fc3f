#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/small_step.h"
#include "gpu/gpu.h"
#include "parity/case.h"

namespace vlmtrain::gpu {
namespace {

class GpuTrainingStep : public GpuTest, public testing::WithParamInterface<std::string> {};

TEST_P(GpuTrainingStep, LearnsTheBatchIn16Bits) {
  const parity::Case reference("mixed_batch");
  const at::ScalarType dtype = GetParam() == "bf16" ? at::kBFloat16 : at::kHalf;
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const auto model = models::build_model(reference.checkpoint(), device_, dtype);
  models::load_weights(*model, reference.checkpoint());
  engine::OptimizerSettings settings;
  if (dtype == at::kHalf) settings.loss_scale = engine::LossScaleSettings{.init_scale = 1024};
  engine::TrainingState training(*model, settings);
  const double rate = is_fault_planted() ? 0 : 1e-3;
  const engine::LearningRates rates{rate, rate, rate};
  const auto samples = reference.samples();
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    const auto result = engine::run_optimizer_step(training, samples, rates, {.micro_batch_size = 2});
    losses.push_back(result.loss.item<double>());
  }
  EXPECT_LT(losses.back(), 0.9 * losses.front());
}

INSTANTIATE_TEST_SUITE_P(In, GpuTrainingStep, testing::Values("bf16", "fp16"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::gpu
