#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/bucketed_optimizer.h"
#include "engine/small_step.h"
#include "parity/case.h"
#include "vlmtrain/engine/step/step.h"

namespace vlmtrain::engine {
namespace {

/// A loss scale at which no gradient of these models overflows in fp16.
constexpr double kLossScale = 8192;

/// Computes loss and gradients of a parity case on the CPU; gradients in fp32 without the loss
/// scale.
struct LossAndGradients {
  double loss;
  std::map<std::string, at::Tensor> gradients;
  std::vector<TaskResult> tasks;
};

/// Samples alternate between `tasks` tasks.
LossAndGradients compute(const std::string& name, at::ScalarType dtype, models::RecomputeBlockCounts recompute = {},
                         const TaskSettings& tasks = {}) {
  const parity::Case reference(name);
  const auto model = reference.load_model(dtype);
  model->set_recompute_block_counts(recompute);
  OptimizerSettings settings;
  if (dtype == at::kHalf) settings.loss_scale = LossScaleSettings{.init_scale = kLossScale};
  BucketedOptimizer optimizer(model->parameters(), settings);
  auto samples = reference.samples();
  for (size_t i = 0; tasks.is_multi_task() && i < samples.size(); ++i) {
    samples[i].task_index = static_cast<int64_t>(i) % tasks.num_tasks;
  }
  const auto result =
      accumulate_gradients(*model, samples, {.micro_batch_size = 2, .tasks = tasks}, optimizer.loss_scale());
  LossAndGradients output{result.loss.item<double>(), {}, {}};
  if (tasks.is_multi_task()) output.tasks = read_task_results(result);
  const double scale = optimizer.loss_scale().defined() ? optimizer.loss_scale().item<double>() : 1.0;
  for (const auto& parameter : model->parameters().all()) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor gradient = optimizer.gradient_buckets.sum(parameter.name);
    if (gradient.defined()) output.gradients[parameter.name] = gradient / scale;
  }
  return output;
}

/// Returns the relative difference of the gradients of all parameters together.
double compute_distance(const LossAndGradients& actual, const LossAndGradients& expected) {
  double difference = 0, norm = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    difference += (actual.gradients.at(name) - gradient).square().sum().item<double>();
    norm += gradient.square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

class HalfPrecision : public testing::TestWithParam<std::string> {};

TEST_P(HalfPrecision, Fp16IsFp32RoundedAndCloserToItThanBf16) {
  const auto expected = compute(GetParam(), at::kFloat);
  const auto fp16 = compute(GetParam(), at::kHalf);
  const auto bf16 = compute(GetParam(), at::kBFloat16);
  EXPECT_NEAR(fp16.loss / expected.loss, 1.0, 2e-3);
  EXPECT_EQ(fp16.gradients.size(), expected.gradients.size());
  const double fp16_distance = compute_distance(fp16, expected), bf16_distance = compute_distance(bf16, expected);
  RecordProperty("fp16", std::to_string(fp16_distance));
  RecordProperty("bf16", std::to_string(bf16_distance));
  std::printf("  gradients: fp16 %.1e, bf16 %.1e from fp32; loss %.1e, %.1e\n", fp16_distance, bf16_distance,
              std::abs(fp16.loss / expected.loss - 1), std::abs(bf16.loss / expected.loss - 1));
  EXPECT_LT(fp16_distance, 0.01);
  EXPECT_LT(fp16_distance, bf16_distance / 3) << "fp16 has three bits more";
}

TEST_P(HalfPrecision, RecomputationGivesTheSameBits) {
  const auto expected = compute(GetParam(), at::kHalf);
  const auto actual = compute(GetParam(), at::kHalf, {9, 9});
  EXPECT_EQ(actual.loss, expected.loss);
  EXPECT_EQ(compute_distance(actual, expected), 0.0);
}

/// The loss scale does not affect GradNorm's gradient norms.
TEST_P(HalfPrecision, TaskWeightsAndNormsMatchInFp16) {
  const TaskSettings tasks{.num_tasks = 2, .weights = {0.5, 1.5}, .measure_gradient_norms = true};
  const auto expected = compute(GetParam(), at::kFloat, {}, tasks);
  const auto actual = compute(GetParam(), at::kHalf, {}, tasks);
  EXPECT_NEAR(actual.loss / expected.loss, 1.0, 2e-3);
  EXPECT_LT(compute_distance(actual, expected), 0.01);
  ASSERT_EQ(actual.tasks.size(), 2U);
  for (size_t i = 0; i < actual.tasks.size(); ++i) {
    if (expected.tasks[i].counts.label_tokens == 0) continue;
    EXPECT_NEAR(actual.tasks[i].loss / expected.tasks[i].loss, 1.0, 5e-3) << i;
    EXPECT_NEAR(actual.tasks[i].gradient_norm / expected.tasks[i].gradient_norm, 1.0, 5e-3) << i;
  }
}

// Without gemma4_tower: at the bounds of its clamped Linears, gradients jump.
INSTANTIATE_TEST_SUITE_P(Models, HalfPrecision,
                         testing::Values("mixed_batch", "llava_clip_llama", "llava_siglip_qwen2", "llava_clip_mistral",
                                         "nanovlm_tiles", "qwen2_5_vl_windows", "qwen2_vl_images", "qwen3_vl_images",
                                         "qwen3_vl_mixed", "qwen3_5_video", "internvl3_tiles",
                                         "internvl_rms_norm_video", "gemma3_published", "gemma3_saved",
                                         "gemma4_unified_video", "llama_text"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::engine
