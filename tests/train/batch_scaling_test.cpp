#include "train/batch_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {
namespace {

using engine::BatchScaling;
using testing::HasSubstr;
using testing::IsEmpty;

engine::TrainingOptions options(BatchScaling scaling, Auto<int64_t> tokens, Auto<int64_t> reference) {
  engine::TrainingOptions training;
  training.global_batch_size = 64;
  training.max_steps = 10;
  training.learning_rate = 1e-4;
  training.vision_learning_rate = 2e-5;
  training.balance.batch_scaling = scaling;
  training.balance.global_batch_tokens = tokens;
  training.balance.reference_batch_size = reference;
  return training;
}

TEST(BatchScaling, LearningRatesScaleWithTheReferenceBatch) {
  for (const auto& [scaling, factor] : {std::pair{BatchScaling::kSqrt, 2.0}, {BatchScaling::kLinear, 4.0}}) {
    const auto training = options(scaling, {}, 16);
    check_batch_scaling(training);
    EXPECT_DOUBLE_EQ(compute_reference_lr_factor(training), factor);
    const auto rates = compute_learning_rates(training, 0.5);
    EXPECT_DOUBLE_EQ(rates.language_model, 0.5 * factor * 1e-4);
    EXPECT_DOUBLE_EQ(rates.projector, 0.5 * factor * 1e-4);
    EXPECT_DOUBLE_EQ(rates.vision_tower, 0.5 * factor * 2e-5);
  }
  EXPECT_EQ(compute_reference_lr_factor(options(BatchScaling::kNone, {}, {})), 1.0);
  EXPECT_DOUBLE_EQ(compute_reference_lr_factor(options(BatchScaling::kSqrt, {}, 256)), 0.5);
}

TEST(BatchScaling, StepLearningRatesScaleWithTokens) {
  EXPECT_EQ(compute_step_lr_factor(options(BatchScaling::kNone, 1000, {}), 250), 1.0);
  EXPECT_DOUBLE_EQ(compute_step_lr_factor(options(BatchScaling::kSqrt, 1000, {}), 250), 0.5);
  EXPECT_DOUBLE_EQ(compute_step_lr_factor(options(BatchScaling::kLinear, 1000, {}), 250), 0.25);
  EXPECT_EQ(compute_step_lr_factor(options(BatchScaling::kLinear, {}, 16), 250), 1.0) << "the batch has its size";
}

TEST(BatchScaling, LogDescribesRuleAndLearningRates) {
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kNone, {}, {})), IsEmpty());
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kSqrt, {}, 16)),
              testing::AllOf(HasSubstr("sqrt"), HasSubstr("16"), HasSubstr("0.0002"), HasSubstr("4e-05")));
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kLinear, 4096, {})),
              testing::AllOf(HasSubstr("about 4096 tokens, at most 64 samples"), HasSubstr("linear")));
  EXPECT_THAT(describe_batch_scaling(options(BatchScaling::kNone, 4096, {})), HasSubstr("do not follow"));
}

TEST(BatchScaling, RejectsConflictingOptions) {
  const auto get_refusal = [](const engine::TrainingOptions& training) -> std::string {
    try {
      check_batch_scaling(training);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "it was taken";
  };
  auto without_steps = options(BatchScaling::kNone, 4096, {});
  without_steps.max_steps.reset();
  EXPECT_THAT(get_refusal(without_steps), HasSubstr("set training.max_steps"));
  EXPECT_THAT(get_refusal(options(BatchScaling::kSqrt, 4096, 16)), HasSubstr("set one of the two to auto"));
  EXPECT_THAT(get_refusal(options(BatchScaling::kSqrt, {}, {})), HasSubstr("nothing to scale by"));
  EXPECT_THAT(get_refusal(options(BatchScaling::kNone, {}, 16)), HasSubstr("set training.batch_scaling"));
}

}  // namespace
}  // namespace vlmtrain::train
