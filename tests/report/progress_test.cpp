#include "vlmtrain/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::report {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

StepMetrics metrics_of(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.5;
  metrics.learning_rate = 1e-4;
  metrics.tokens = 1000;
  metrics.step_seconds = 0.5;
  return metrics;
}

/// What a run of `steps` prints where stderr is a file.
std::string printed(int64_t steps, bool quiet) {
  testing::internal::CaptureStderr();
  {
    Progress progress(steps, 0, quiet);
    for (int64_t step = 1; step <= steps; ++step) progress.show(metrics_of(step));
    progress.clear();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(ProgressTest, PlainLinesWhereThereIsNoTerminal) {
  const std::string text = printed(100, /*quiet=*/false);
  EXPECT_THAT(text, testing::StartsWith("step 1/100  loss 2.5000  lr 1.00e-04"));
  EXPECT_THAT(text, HasSubstr("2000 tokens/s"));
  EXPECT_THAT(text, HasSubstr("step 100/100")) << "the last step is always shown";
  EXPECT_THAT(text, EndsWith("left\n"));
  EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
  EXPECT_THAT(text, Not(HasSubstr("step 50/100"))) << "a line every few seconds, not one a step";
}

TEST(ProgressTest, QuietPrintsNothing) {
  EXPECT_EQ(printed(3, /*quiet=*/true), "");
}

}  // namespace
}  // namespace vlmtrain::report
