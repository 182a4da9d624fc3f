#include "vlmtrain/engine/settings/training_settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/option_values.h"
#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::engine {

namespace {

TEST(Schedule, WarmUpRisesToThePeakAndNeverStartsAtZero) {
  for (const auto shape : {ScheduleShape::kCosine, ScheduleShape::kLinear, ScheduleShape::kConstant}) {
    const LearningRateSchedule schedule{shape, 4, 20};
    EXPECT_DOUBLE_EQ(schedule.compute_factor(0), 0.25);
    EXPECT_DOUBLE_EQ(schedule.compute_factor(1), 0.5);
    EXPECT_DOUBLE_EQ(schedule.compute_factor(3), 1.0);
    EXPECT_DOUBLE_EQ(schedule.compute_factor(4), 1.0);
  }
}

TEST(Schedule, CosineFallsToZero) {
  const LearningRateSchedule schedule{ScheduleShape::kCosine, 4, 20};
  EXPECT_DOUBLE_EQ(schedule.compute_factor(8), 0.5 * (1 + std::numbers::sqrt2 / 2));
  EXPECT_NEAR(schedule.compute_factor(12), 0.5, 1e-15);
  EXPECT_NEAR(schedule.compute_factor(19), 0.5 * (1 + std::cos(std::numbers::pi * 15 / 16)), 1e-15);
  EXPECT_GT(schedule.compute_factor(19), 0.0);
  EXPECT_NEAR(schedule.compute_factor(20), 0.0, 1e-15);
}

TEST(Schedule, LinearFallsByEqualSteps) {
  const LearningRateSchedule schedule{ScheduleShape::kLinear, 2, 12};
  EXPECT_DOUBLE_EQ(schedule.compute_factor(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.compute_factor(3), 0.9);
  EXPECT_DOUBLE_EQ(schedule.compute_factor(7), 0.5);
  EXPECT_NEAR(schedule.compute_factor(11), 0.1, 1e-15);
}

TEST(Schedule, ConstantStays) {
  const LearningRateSchedule schedule{ScheduleShape::kConstant, 0, 3};
  for (int64_t step = 0; step < 10; ++step) EXPECT_DOUBLE_EQ(schedule.compute_factor(step), 1.0);
}

TEST(Schedule, IsZeroPastTheEnd) {
  EXPECT_DOUBLE_EQ((LearningRateSchedule{ScheduleShape::kLinear, 0, 4}.compute_factor(9)), 0.0);
  EXPECT_NEAR((LearningRateSchedule{ScheduleShape::kCosine, 0, 4}.compute_factor(9)), 0.0, 1e-15);
}

TEST(Schedule, EveryStepMayBeWarmUp) {
  const LearningRateSchedule schedule{ScheduleShape::kCosine, 3, 3};
  EXPECT_DOUBLE_EQ(schedule.compute_factor(2), 1.0);
  EXPECT_TRUE(std::isfinite(schedule.compute_factor(3)));
}

TEST(Schedule, ASingleStepHasTheFullRate) {
  for (const auto shape : {ScheduleShape::kCosine, ScheduleShape::kLinear, ScheduleShape::kConstant})
    EXPECT_DOUBLE_EQ((LearningRateSchedule{shape, 0, 1}.compute_factor(0)), 1.0);
}

TEST(TrainingOptionsTest, EachKeyAcceptsItsDocumentedValues) {
  expect_values<TrainingOptions>({
      {"training.global_batch_size", {"1", "1000000"}, {"0", "1000001", "auto"}},
      {"training.micro_batch_size", {"auto", "1", "1000000"}, {"0", "1000001"}},
      {"training.max_steps", {"auto", "1"}, {"0"}},
      {"training.epochs", {"0.000001", "1000000"}, {"0", "1000001"}},
      {"training.learning_rate", {"0", "1e-6"}, {"-1e-6"}},
      {"training.vision_learning_rate", {"auto", "0", "1e-6"}, {"-1e-6"}},
      {"training.projector_learning_rate", {"auto", "0", "1e-6"}, {"-1e-6"}},
      {"training.adam_beta1", {"0", "0.999"}, {"-0.1", "1"}},
      {"training.adam_beta2", {"0", "0.999"}, {"-0.1", "1"}},
      {"training.adam_epsilon", {"1e-12"}, {"0"}},
      {"training.weight_decay", {"0", "0.1"}, {"-0.1"}},
      {"training.optimizer", {"adamw", "muon"}, {"sgd", "adamw_8bit"}},
      {"training.muon_momentum", {"0", "0.95"}, {"-0.1", "1"}},
      {"training.muon_ns_steps", {"1", "99"}, {"0", "100"}},
      {"training.muon_adjust_lr", {"original", "match_rms_adamw"}, {"none"}},
      {"training.no_weight_decay", {"[]", "[bias, norm]"}, {"{a: b}"}},
      {"training.parameter_groups",
       {"[]", "[{parameters: visual, learning_rate: 1e-6}]",
        "[{parameters: [a, b], weight_decay: 0, optimizer: muon}]"},
       {"visual", "[visual]", "[{learning_rate: 1}]", "[{parameters: visual}]", "[{parameters: [], learning_rate: 1}]",
        "[{parameters: '', learning_rate: 1}]", "[{parameters: a, learning_rate: -1}]", "[{parameters: a, lr: 1}]",
        "[{parameters: a, learning_rate: .inf}]", "[{parameters: a, optimizer: sgd}]",
        "[{parameters: a, weight_decay: auto}]"}},
      {"training.warmup_ratio", {"0", "1"}, {"-0.1", "1.1"}},
      {"training.max_grad_norm", {"0", "0.5"}, {"-0.5"}},
      {"training.loss_scale", {"auto", "0.5"}, {"0"}},
      {"training.loss_scale_growth_steps", {"1"}, {"0"}},
      {"training.seed", {"0"}, {"-1"}},
      {"training.global_batch_tokens", {"auto", "1"}, {"0"}},
      {"training.reference_batch_size", {"auto", "1"}, {"0"}},
      {"training.gradnorm_alpha", {"0", "0.5"}, {"-0.5"}},
      {"training.gradnorm_learning_rate", {"0.5"}, {"0"}},
  });
}

TEST(TrainingOptionsTest, EnumsHaveTheirNames) {
  TrainingOptions options;
  for (const auto* const precision : {"fp32", "bf16", "fp16"}) {
    EXPECT_TRUE(accepts(options, "training.precision", precision));
    EXPECT_EQ(to_string(options.precision), precision);
  }
  for (const auto* const states : {"fp32", "bf16", "8bit"}) {
    EXPECT_TRUE(accepts(options, "training.optimizer_states", states));
    EXPECT_EQ(to_string(options.optimizer.state_dtype), states);
  }
  for (const auto* const scaling : {"none", "sqrt", "linear"}) {
    EXPECT_TRUE(accepts(options, "training.batch_scaling", scaling));
    EXPECT_EQ(to_string(options.batch_and_tasks.batch_scaling), scaling);
  }
  EXPECT_FALSE(accepts(options, "training.precision", "fp8"));
}

}  // namespace

}  // namespace vlmtrain::engine
