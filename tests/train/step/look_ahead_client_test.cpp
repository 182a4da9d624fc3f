#include "train/step/look_ahead_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "planner/dry_run.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kLimit = int64_t{20} << 30;
constexpr int64_t kMebibyte = 1 << 20;

int64_t count_steps_until_decrease(LookAheadMemoryMargin& margin) {
  const int64_t bytes_before = margin.bytes();
  int64_t steps = 0;
  while (margin.bytes() == bytes_before && steps < 10'000) {
    margin.record_success(0);
    ++steps;
  }
  return steps;
}

TEST(LookAheadMarginTest, RisesAfterOutOfMemoryAndFallsWithGoodSteps) {
  LookAheadMemoryMargin margin(kLimit);
  EXPECT_EQ(margin.bytes(), 0);
  margin.increase();
  const int64_t raised_bytes = margin.bytes();
  EXPECT_EQ(raised_bytes, kLimit / 50);
  EXPECT_EQ(count_steps_until_decrease(margin), 20);
  EXPECT_EQ(margin.bytes(), raised_bytes / 2);
  for (int64_t step = 0; step < 500; ++step) margin.record_success(0);
  EXPECT_EQ(margin.bytes(), 0);
}

TEST(LookAheadMarginTest, FallsMoreSlowlyAfterRepeatedOutOfMemory) {
  LookAheadMemoryMargin margin(kLimit);
  margin.increase();
  EXPECT_EQ(count_steps_until_decrease(margin), 20);
  margin.increase();
  EXPECT_EQ(count_steps_until_decrease(margin), 40);
  for (int64_t miss = 0; miss < 20; ++miss) margin.increase();
  EXPECT_EQ(count_steps_until_decrease(margin), 640);
}

TEST(LookAheadMarginTest, OutOfMemoryRestartsTheCount) {
  LookAheadMemoryMargin margin(kLimit);
  margin.increase();
  for (int64_t step = 0; step < 19; ++step) margin.record_success(0);
  margin.increase();
  const int64_t raised_bytes = margin.bytes();
  margin.record_success(0);
  EXPECT_EQ(margin.bytes(), raised_bytes);
}

TEST(LookAheadMarginTest, LeavesThreeQuartersOfTheLimit) {
  LookAheadMemoryMargin margin(kLimit);
  for (int64_t miss = 0; miss < 1000; ++miss) margin.increase();
  EXPECT_EQ(margin.bytes(), kLimit / 4);
}

TEST(LookAheadMarginTest, CoversTheExcessOfTheLastTwentySteps) {
  LookAheadMemoryMargin margin(kLimit);
  margin.record_success(-5 * kMebibyte);
  EXPECT_EQ(margin.bytes(), 0) << "less than foreseen";
  margin.record_success(7 * kMebibyte);
  margin.record_success(3 * kMebibyte);
  EXPECT_EQ(margin.bytes(), 7 * kMebibyte);
  for (int64_t step = 0; step < 19; ++step) margin.record_success(0);
  EXPECT_EQ(margin.bytes(), 3 * kMebibyte);
  margin.record_success(0);
  EXPECT_EQ(margin.bytes(), 0);
}

using planner::kMiB;
using testing::Contains;
using testing::HasSubstr;

/// Duration of a step; the client waits a hundredth of it.
constexpr double kLongStepSeconds = 6000;
constexpr double kNoWait = 0;

/// A real look-ahead of a run that does not exist: the test provides what the run does and
/// measures.
class LookAheadClientTest : public testing::Test {
 protected:
  static constexpr int64_t kSamples = 4;

  std::unique_ptr<LookAheadClient> make_client(int64_t limit_bytes = planner::kUnlimited) {
    return std::make_unique<LookAheadClient>(
        LookAheadSettings{.job = model_.job(),
                          .step_config = step_config_,
                          .target = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                          .limit_bytes = limit_bytes},
        at::kCPU, [this](report::EventKind, const std::string& message) { events_.push_back(message); });
  }

  void submit(LookAheadClient& client, int64_t step, int64_t images = 2) const {
    const auto shape = model_.shape({.images = images, .image_width = 600, .image_height = 400});
    client.submit(step, std::vector(kSamples, shape), make_default_layout());
  }

  engine::StepLayout make_default_layout() const {
    return planner::make_step_layout(step_config_, std::vector<data::SampleShape>(kSamples));
  }
  StepPlan wait_for_plan(LookAheadClient& client, int64_t step, double step_seconds = kLongStepSeconds) const {
    return client.wait_for_plan(step, make_default_layout(), step_seconds);
  }

  static memory::DeviceMemoryStats make_measurement(const StepPlan& plan, int64_t excess_bytes = 0) {
    return {.allocated_peak_bytes = plan.peaks->allocated_bytes,
            .reserved_peak_bytes = plan.peaks->reserved_bytes + excess_bytes};
  }

  const planner::PresetFolder model_{"smolvlm-tiny"};
  const planner::StepConfig step_config_ = planner::make_step_config(2);
  std::vector<std::string> events_;
};

TEST_F(LookAheadClientTest, ResynchronizesAfterALateForecast) {
  const auto look_ahead = make_client();
  for (const int64_t step : {10, 11, 12}) submit(*look_ahead, step);
  const StepPlan late_plan = wait_for_plan(*look_ahead, 10, kNoWait);  // its process has not even started
  EXPECT_FALSE(late_plan.peaks);
  EXPECT_EQ(late_plan.layout, make_default_layout());
  EXPECT_EQ(look_ahead->summary().num_late_steps, 1);
  for (const int64_t step : {11, 12}) {
    const StepPlan plan = wait_for_plan(*look_ahead, step);
    ASSERT_TRUE(plan.peaks) << step;
    EXPECT_FALSE(plan.empty_cache_at_start) << step;
    look_ahead->compare_with_measurement(step, plan, make_measurement(plan, 100 * kMiB), /*as_foreseen=*/true);
  }
  EXPECT_EQ(look_ahead->summary().max_relative_error, 0) << "they may differ until then";
  submit(*look_ahead, 13);
  const StepPlan synchronized_plan = wait_for_plan(*look_ahead, 13);
  ASSERT_TRUE(synchronized_plan.peaks);
  EXPECT_TRUE(synchronized_plan.empty_cache_at_start);
  look_ahead->compare_with_measurement(13, synchronized_plan, make_measurement(synchronized_plan, kMiB),
                                       /*as_foreseen=*/true);
  EXPECT_GT(look_ahead->summary().max_relative_error, 0);
  EXPECT_LT(look_ahead->summary().max_relative_error, 0.1);
}

TEST_F(LookAheadClientTest, SkipsComparisonWhileDesynchronized) {
  const auto look_ahead = make_client();
  for (const int64_t step : {10, 11, 12}) submit(*look_ahead, step);
  const StepPlan first = wait_for_plan(*look_ahead, 10);
  ASSERT_TRUE(first.peaks);
  look_ahead->compare_with_measurement(10, first, make_measurement(first), /*as_foreseen=*/true);
  look_ahead->mark_desynchronized();
  for (const int64_t step : {11, 12}) {
    const StepPlan plan = wait_for_plan(*look_ahead, step);
    ASSERT_TRUE(plan.peaks);
    EXPECT_FALSE(plan.empty_cache_at_start) << "announced before";
    look_ahead->compare_with_measurement(step, plan, make_measurement(plan, 100 * kMiB), /*as_foreseen=*/true);
  }
  submit(*look_ahead, 13);
  EXPECT_TRUE(wait_for_plan(*look_ahead, 13).empty_cache_at_start);
  EXPECT_EQ(look_ahead->summary().max_relative_error, 0);
}

TEST_F(LookAheadClientTest, WaitsOnePercentOfAStep) {
  setenv("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS", "60", 1);
  const auto look_ahead = make_client();
  unsetenv("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS");
  submit(*look_ahead, 1);
  EXPECT_FALSE(wait_for_plan(*look_ahead, 1, /*step_seconds=*/20).peaks);
  EXPECT_GE(look_ahead->summary().wait_seconds, 0.2);
  EXPECT_LT(look_ahead->summary().wait_seconds, 20);
}

TEST_F(LookAheadClientTest, ContinuesAfterTheProcessEnded) {
  auto job = model_.job();
  job.model = "/nowhere";
  LookAheadClient look_ahead({.job = job,
                              .step_config = step_config_,
                              .target = {.gpu = "rtx4090", .memory_bytes = planner::kUnlimited},
                              .limit_bytes = planner::kUnlimited},
                             at::kCPU,
                             [this](report::EventKind, const std::string& message) { events_.push_back(message); });
  submit(look_ahead, 1);
  EXPECT_FALSE(wait_for_plan(look_ahead, 1).peaks) << "it answers only by ending";
  for (const int64_t step : {2, 3}) {
    submit(look_ahead, step);
    const StepPlan plan = wait_for_plan(look_ahead, step);
    EXPECT_FALSE(plan.peaks);
    EXPECT_EQ(plan.layout, make_default_layout());
  }
  EXPECT_THAT(events_, testing::ElementsAre(HasSubstr("the look-ahead has ended")));
}

TEST_F(LookAheadClientTest, GivesUpAfterTenLateSteps) {
  setenv("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS", "60", 1);
  const auto look_ahead = make_client();
  unsetenv("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS");
  for (int64_t step = 1; step <= 12; ++step) {
    submit(*look_ahead, step);
    EXPECT_EQ(wait_for_plan(*look_ahead, step, kNoWait).layout, make_default_layout());
  }
  EXPECT_EQ(look_ahead->summary().num_late_steps, 10);
  EXPECT_THAT(events_, Contains(HasSubstr("10 steps late")));
}

TEST_F(LookAheadClientTest, NamesTheOversizedSampleInAdvance) {
  const auto look_ahead = make_client(8 * kMiB);
  submit(*look_ahead, 1);
  const StepPlan plan = wait_for_plan(*look_ahead, 1);
  EXPECT_FALSE(plan.fits);
  EXPECT_FALSE(plan.peaks);
  EXPECT_TRUE(plan.empty_cache_at_start);
  EXPECT_EQ(plan.oversized_sample_index, 0);
  EXPECT_EQ(plan.layout.split.sizes.front(), 1);
  EXPECT_EQ(look_ahead->summary().num_oversized_steps, 1);
  submit(*look_ahead, 2);
  EXPECT_TRUE(wait_for_plan(*look_ahead, 2).empty_cache_at_start) << "the look-ahead did not do step 1 as the run did";
}

/// A failure lowers the limit of submitted steps; enough successful steps restore it.
TEST_F(LookAheadClientTest, UnforecastOutOfMemoryLowersTheLimit) {
  int64_t required_bytes = 0;
  {
    const auto unlimited = make_client();
    for (const int64_t step : {1, 2, 3}) {
      submit(*unlimited, step);
      const StepPlan plan = wait_for_plan(*unlimited, step);
      ASSERT_TRUE(plan.peaks);
      required_bytes = std::max(required_bytes, plan.peaks->reserved_bytes);
    }
  }
  const auto look_ahead = make_client(required_bytes);
  const auto is_split = [&](int64_t step) {
    submit(*look_ahead, step);
    const StepPlan plan = wait_for_plan(*look_ahead, step);
    look_ahead->compare_with_measurement(step, plan, plan.peaks ? make_measurement(plan) : memory::DeviceMemoryStats{},
                                         /*as_foreseen=*/true);
    return plan.layout != make_default_layout();
  };
  EXPECT_FALSE(is_split(1));
  look_ahead->increase_margin();
  int64_t step = 2;
  EXPECT_TRUE(is_split(step));
  while (step < 100 && is_split(++step)) {
  }
  EXPECT_GE(step, 20);
  EXPECT_LT(step, 60);
}

}  // namespace

}  // namespace vlmtrain::train
