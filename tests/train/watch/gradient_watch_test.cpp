#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "train/event_recorder.h"
#include "train/loop/watches.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class AnomalyWatchTest : public testing::Test {
 protected:
  AnomalyWatchTest() { callbacks_.add(std::make_unique<EventRecorder>(events_)); }

  void step(double loss, double grad_norm, bool skipped, std::optional<double> loss_scale = std::nullopt) {
    StepReport report{.metrics = {}, .sample_ids = {"first", "second"}};
    report.metrics.step = ++step_;
    report.metrics.loss = loss;
    report.metrics.grad_norm = grad_norm;
    report.metrics.skipped = skipped;
    report.metrics.loss_scale = loss_scale;
    watch_.observe_step(report);
  }

  CallbackList callbacks_;
  AnomalyWatch watch_{callbacks_};
  std::vector<report::RunEvent> events_;
  int64_t step_ = 0;
};

TEST_F(AnomalyWatchTest, NamesTheSamplesOfASkippedStep) {
  step(1.5, 2, false);
  step(kNan, 2, true);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_EQ(events_[0].kind, report::EventKind::kAnomaly);
  EXPECT_EQ(events_[0].step, 2);
  EXPECT_THAT(events_[0].ids, ElementsAre("first", "second"));
}

TEST_F(AnomalyWatchTest, StopsAfterThreeConsecutiveSkips) {
  step(kNan, 1, true);
  step(kNan, 1, true);
  step(1, 1, false);
  step(1, kInfinity, true);
  step(1, kInfinity, true);
  try {
    step(1, kNan, true);
    FAIL() << "the run continues";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("first, second"));
    EXPECT_THAT(error.what(), HasSubstr("step 6"));
  }
  EXPECT_EQ(events_.size(), 5U);
}

TEST_F(AnomalyWatchTest, IgnoresOverflowsThatALowerLossScaleFixes) {
  for (const double scale : {65536.0, 32768.0, 16384.0, 8192.0, 2.0}) step(1, kInfinity, true, scale);
  for (const auto& event : events_) EXPECT_EQ(event.kind, report::EventKind::kSkippedStep);
  step(1, kInfinity, true, 1.0);
  EXPECT_EQ(events_.back().kind, report::EventKind::kAnomaly);
}

TEST_F(AnomalyWatchTest, AFixedLossScaleThatIsTooLargeStopsTheRun) {
  for (int i = 0; i < 3; ++i) step(1, kInfinity, true, 1024.0);
  EXPECT_THROW(step(1, kInfinity, true, 1024.0), UserError);
}

TEST_F(AnomalyWatchTest, NonFiniteLossIsAnAnomalyAtAnyScale) {
  step(kNan, kNan, true, 65536.0);
  EXPECT_EQ(events_.back().kind, report::EventKind::kAnomaly);
}

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class GradientWatchTest : public testing::Test {
 protected:
  GradientWatchTest() { callbacks_.add(std::make_unique<EventRecorder>(events_)); }

  void step(double grad_norm, int64_t images = 0, bool skipped = false) {
    StepReport report{.metrics = {}, .sample_ids = {"first"}};
    report.metrics.step = ++step_;
    report.metrics.grad_norm = grad_norm;
    report.metrics.num_media = images;
    report.metrics.skipped = skipped;
    watch_.observe_step(report);
  }

  CallbackList callbacks_;
  GradientWatch watch_{callbacks_, "the vision tower", /*has_media=*/true};
  std::vector<report::RunEvent> events_;
  int64_t step_ = 0;
};

TEST_F(GradientWatchTest, ReportsAFirstStepWithoutGradient) {
  step(0);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].kind, report::EventKind::kAnomaly);
  EXPECT_THAT(events_[0].message, AllOf(HasSubstr("step 1"), HasSubstr("nothing is learned"),
                                        HasSubstr("trains only the vision tower, but none of the samples so far")));
  step(0);
  EXPECT_THAT(events_, SizeIs(1)) << "it is said once";
  EXPECT_TRUE(watch_.is_gradient_always_zero());
}

TEST_F(GradientWatchTest, StaysQuietAfterAStepWithAGradient) {
  step(0.5);
  for (int i = 0; i < 3; ++i) step(0, 1);
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_FALSE(watch_.is_gradient_always_zero());
}

TEST_F(GradientWatchTest, SkippedStepsAreNotCounted) {
  step(0, 0, /*skipped=*/true);
  EXPECT_FALSE(watch_.is_gradient_always_zero());
  step(0, 2);
  EXPECT_THAT(events_, SizeIs(1));
  EXPECT_THAT(watch_.reason(), Not(HasSubstr("none of the samples"))) << "they have media";
}

}  // namespace

}  // namespace vlmtrain::train
