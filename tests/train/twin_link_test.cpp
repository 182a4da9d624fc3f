#include "train/twin_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "planner/rehearsal.h"

namespace vlmtrain::train {
namespace {

using planner::kMiB;
using testing::Contains;
using testing::HasSubstr;

/// Of a step: a hundredth of it is the patience.
constexpr double kPatient = 6000;
constexpr double kImpatient = 0;

/// A real twin of a run that is not there: the test says what the run does and measures.
class TwinLinkTest : public testing::Test {
 protected:
  static constexpr int64_t kSamples = 4;

  std::unique_ptr<TwinLink> link(int64_t limit_bytes = planner::kUnlimited) {
    return std::make_unique<TwinLink>(
        TwinSettings{.job = model_.job(),
                     .choices = choices_,
                     .card = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                     .limit_bytes = limit_bytes},
        at::kCPU, [this](report::EventKind, const std::string& message) { events_.push_back(message); });
  }

  void announce(TwinLink& link, int64_t step, int64_t images = 2) const {
    const auto shape = model_.shape({.images = images, .image_width = 600, .image_height = 400});
    link.announce(step, std::vector(kSamples, shape), planned());
  }

  engine::StepLayout planned() const { return planner::layout_of(choices_, std::vector<data::SampleShape>(kSamples)); }
  StepPlan await(TwinLink& link, int64_t step, double step_seconds = kPatient) const {
    return link.await(step, planned(), step_seconds);
  }

  static memory::DeviceMemory measured(const StepPlan& foreseen, int64_t more_bytes = 0) {
    return {.allocated_peak_bytes = foreseen.peaks->allocated_bytes,
            .reserved_peak_bytes = foreseen.peaks->reserved_bytes + more_bytes};
  }

  const planner::PresetFolder model_{"smolvlm-tiny"};
  const planner::Choices choices_ = planner::micro_batches_of(2);
  std::vector<std::string> events_;
};

TEST_F(TwinLinkTest, AfterALateAnswerBothEmptyTheirCachesAndAreAlikeAgain) {
  const auto twin = link();
  for (const int64_t step : {10, 11, 12}) announce(*twin, step);
  const StepPlan late = await(*twin, 10, kImpatient);  // its process is not even up
  EXPECT_FALSE(late.peaks);
  EXPECT_EQ(late.layout, planned());
  EXPECT_EQ(twin->summary().late_steps, 1);
  for (const int64_t step : {11, 12}) {
    const StepPlan foreseen = await(*twin, step);
    ASSERT_TRUE(foreseen.peaks) << step;
    EXPECT_FALSE(foreseen.release_first) << step;
    twin->compare(step, foreseen, measured(foreseen, 100 * kMiB), /*as_foreseen=*/true);
  }
  EXPECT_EQ(twin->summary().worst_error, 0) << "they may differ until then";
  announce(*twin, 13);
  const StepPlan alike = await(*twin, 13);
  ASSERT_TRUE(alike.peaks);
  EXPECT_TRUE(alike.release_first);
  twin->compare(13, alike, measured(alike, kMiB), /*as_foreseen=*/true);
  EXPECT_GT(twin->summary().worst_error, 0);
  EXPECT_LT(twin->summary().worst_error, 0.1);
}

TEST_F(TwinLinkTest, WhatTheRunDidByItselfIsNotCompared) {
  const auto twin = link();
  for (const int64_t step : {10, 11, 12}) announce(*twin, step);
  const StepPlan first = await(*twin, 10);
  ASSERT_TRUE(first.peaks);
  twin->compare(10, first, measured(first), /*as_foreseen=*/true);
  twin->diverge();
  for (const int64_t step : {11, 12}) {
    const StepPlan foreseen = await(*twin, step);
    ASSERT_TRUE(foreseen.peaks);
    EXPECT_FALSE(foreseen.release_first) << "announced before";
    twin->compare(step, foreseen, measured(foreseen, 100 * kMiB), /*as_foreseen=*/true);
  }
  announce(*twin, 13);
  EXPECT_TRUE(await(*twin, 13).release_first);
  EXPECT_EQ(twin->summary().worst_error, 0);
}

TEST_F(TwinLinkTest, WaitsAHundredthOfAStepAndNoMore) {
  setenv("VLMTRAIN_TWIN_DELAY_SECONDS", "60", 1);
  const auto twin = link();
  unsetenv("VLMTRAIN_TWIN_DELAY_SECONDS");
  announce(*twin, 1);
  EXPECT_FALSE(await(*twin, 1, /*step_seconds=*/20).peaks);
  EXPECT_GE(twin->summary().waited_seconds, 0.2);
  EXPECT_LT(twin->summary().waited_seconds, 20);
}

TEST_F(TwinLinkTest, ATwinThatHasEndedIsDoneWithout) {
  auto job = model_.job();
  job.model = "/nowhere";
  TwinLink twin({.job = job,
                 .choices = choices_,
                 .card = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                 .limit_bytes = planner::kUnlimited},
                at::kCPU, [this](report::EventKind, const std::string& message) { events_.push_back(message); });
  announce(twin, 1);
  EXPECT_FALSE(await(twin, 1).peaks) << "it answers only by ending";
  for (const int64_t step : {2, 3}) {
    announce(twin, step);
    const StepPlan foreseen = await(twin, step);
    EXPECT_FALSE(foreseen.peaks);
    EXPECT_EQ(foreseen.layout, planned());
  }
  EXPECT_THAT(events_, testing::ElementsAre(HasSubstr("the twin has ended")));
}

TEST_F(TwinLinkTest, TenStepsBehindTheRunGoesOnWithoutIt) {
  setenv("VLMTRAIN_TWIN_DELAY_SECONDS", "60", 1);
  const auto twin = link();
  unsetenv("VLMTRAIN_TWIN_DELAY_SECONDS");
  for (int64_t step = 1; step <= 12; ++step) {
    announce(*twin, step);
    EXPECT_EQ(await(*twin, step, kImpatient).layout, planned());
  }
  EXPECT_EQ(twin->summary().late_steps, 10);
  EXPECT_THAT(events_, Contains(HasSubstr("10 steps behind")));
}

TEST_F(TwinLinkTest, SaysWhichSampleFitsInNoWay) {
  const auto twin = link(8 * kMiB);
  announce(*twin, 1);
  const StepPlan foreseen = await(*twin, 1);
  EXPECT_FALSE(foreseen.fits);
  EXPECT_FALSE(foreseen.peaks);
  EXPECT_TRUE(foreseen.release_first);
  EXPECT_EQ(foreseen.sample_that_does_not, 0);
  EXPECT_EQ(foreseen.layout.cut.sizes.front(), 1);
  EXPECT_EQ(twin->summary().hopeless_steps, 1);
  announce(*twin, 2);
  EXPECT_TRUE(await(*twin, 2).release_first) << "the twin did not do step 1 as the run did";
}

/// The limit of the steps that are announced is lower after a miss, and is what it was once enough of them went well.
TEST_F(TwinLinkTest, AMissLowersTheLimitForAWhile) {
  int64_t needed = 0;
  {
    const auto ample = link();
    for (const int64_t step : {1, 2, 3}) {
      announce(*ample, step);
      const StepPlan foreseen = await(*ample, step);
      ASSERT_TRUE(foreseen.peaks);
      needed = std::max(needed, foreseen.peaks->reserved_bytes);
    }
  }
  const auto twin = link(needed);
  const auto is_cut = [&](int64_t step) {
    announce(*twin, step);
    const StepPlan foreseen = await(*twin, step);
    twin->compare(step, foreseen, foreseen.peaks ? measured(foreseen) : memory::DeviceMemory{}, /*as_foreseen=*/true);
    return foreseen.layout != planned();
  };
  EXPECT_FALSE(is_cut(1));
  twin->raise_margin();
  int64_t step = 2;
  EXPECT_TRUE(is_cut(step));
  while (step < 100 && is_cut(++step)) {
  }
  EXPECT_GE(step, 20);
  EXPECT_LT(step, 60);
}

}  // namespace
}  // namespace vlmtrain::train
