#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "train/callbacks/run_callbacks.h"

namespace vlmtrain::train {

namespace {

using testing::HasSubstr;
using testing::Not;

StepReport make_evaluated_step(int64_t step, double loss, bool is_best) {
  StepReport report;
  report.metrics.step = step;
  report.metrics.evaluation = report::EvaluationMetrics{.total = {.loss = loss}, .tasks = {}, .is_best = is_best};
  return report;
}

TEST(ProgressBarTest, LogsEvaluationsWithTheBestOfTheRun) {
  ProgressBar bar(10, /*quiet=*/true);
  bar.on_past_step(nlohmann::json::parse(make_evaluated_step(2, 1.5, true).metrics.to_json_line()));
  bar.on_past_step(nlohmann::json::parse(make_evaluated_step(4, 1.75, false).metrics.to_json_line()));
  for (const char* damaged : {"{}", R"({"evaluation":3})", R"({"evaluation":{"is_best":true,"loss":null}})"}) {
    bar.on_past_step(nlohmann::json::parse(damaged));
  }
  const CapturedLog log;
  StepReport step_without_evaluation;
  step_without_evaluation.metrics.step = 5;
  bar.on_step(step_without_evaluation);
  bar.on_step(make_evaluated_step(6, 1.25, true));
  bar.on_step(make_evaluated_step(8, 1.375, false));
  bar.on_late_evaluation(9, *make_evaluated_step(9, 1.125, true).metrics.evaluation);
  EXPECT_THAT(log.text(), HasSubstr("step 9: validation loss 1.125 (best so far, before 1.25 at step 6), 0.0 s"));
  bar.on_step(make_evaluated_step(10, 3.5, true));
  EXPECT_THAT(log.text(), HasSubstr("step 10: validation loss 3.5, 0.0 s")) << "data.eval was changed";
  EXPECT_THAT(log.text(), Not(HasSubstr("step 5")));
  EXPECT_THAT(log.text(), HasSubstr("step 6: validation loss 1.25 (best so far, before 1.5 at step 2), 0.0 s"));
  EXPECT_THAT(log.text(), HasSubstr("step 8: validation loss 1.375 (best 1.25 at step 6), 0.0 s"));
}

TEST(ProgressBarTest, ComparesByDice) {
  const auto make_mask_step = [](int64_t step, double loss, double dice, bool is_best) {
    StepReport report = make_evaluated_step(step, loss, is_best);
    report.metrics.evaluation->total.masks = report::MaskMetrics{.masks = 1, .dice = dice};
    return report;
  };
  ProgressBar bar(10, /*quiet=*/true, report::BestMetric::kDice);
  bar.on_past_step(nlohmann::json::parse(make_mask_step(2, 1, 0.5, true).metrics.to_json_line()));
  const CapturedLog log;
  bar.on_step(make_mask_step(4, 2, 0.75, true));
  bar.on_step(make_mask_step(6, 0.5, 0.625, false));
  bar.on_step(make_mask_step(8, 0.5, 0.25, true));
  EXPECT_THAT(log.text(), HasSubstr("validation loss 2, Dice 0.750 (best so far, before 0.500 at step 2)"));
  EXPECT_THAT(log.text(), HasSubstr("validation loss 0.5, Dice 0.625 (best 0.750 at step 4)"));
  EXPECT_THAT(log.text(), HasSubstr("step 8: validation loss 0.5, Dice 0.250, 0.0 s")) << "data.eval was changed";
}

}  // namespace

}  // namespace vlmtrain::train
