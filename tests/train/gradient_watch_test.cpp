#include "train/watch/gradient_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/heard_events.h"

namespace vlmtrain::train {
namespace {

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
    watch_.observe(report);
  }

  CallbackList callbacks_;
  GradientWatch watch_{callbacks_, "the vision tower", /*has_media=*/true};
  std::vector<report::Event> events_;
  int64_t step_ = 0;
};

TEST_F(GradientWatchTest, ReportsAFirstStepWithoutGradient) {
  step(0);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].kind, report::EventKind::kAnomaly);
  EXPECT_THAT(events_[0].message, AllOf(HasSubstr("step 1"), HasSubstr("nothing is learned"),
                                        HasSubstr("trained are the vision tower, and none of the samples so far")));
  step(0);
  EXPECT_THAT(events_, SizeIs(1)) << "it is said once";
  EXPECT_TRUE(watch_.has_no_gradient());
}

TEST_F(GradientWatchTest, StaysQuietAfterAStepWithAGradient) {
  step(0.5);
  for (int i = 0; i < 3; ++i) step(0, 1);
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_FALSE(watch_.has_no_gradient());
}

TEST_F(GradientWatchTest, SkippedStepsAreNotCounted) {
  step(0, 0, /*skipped=*/true);
  EXPECT_FALSE(watch_.has_no_gradient());
  step(0, 2);
  EXPECT_THAT(events_, SizeIs(1));
  EXPECT_THAT(watch_.reason(), Not(HasSubstr("none of the samples"))) << "they have media";
}

}  // namespace
}  // namespace vlmtrain::train
