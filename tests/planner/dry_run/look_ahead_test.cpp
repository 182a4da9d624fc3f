#include "vlmtrain/planner/look_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "planner/dry_run.h"

namespace vlmtrain::planner {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr auto kTimeout = seconds(60);
constexpr int64_t kSamples = 4;

/// A small model whose steps have samples of changing sizes.
class LookAheadTest : public testing::Test {
 protected:
  LookAheadTest() {
    for (int64_t step = 0; step < 8; ++step) {
      steps_.push_back({{shape(1 + step % 3), 2}, {shape(1), 1}, {shape(step % 2 == 0 ? 4 : 2), 1}});
    }
  }

  data::SampleShape shape(int64_t images) const {
    return model_.shape({.images = images, .image_width = 600, .image_height = 400});
  }

  LookAheadStep make_step(int64_t step, int64_t limit_bytes = kUnlimited) const {
    return {.step = step,
            .samples = steps_[static_cast<size_t>(step)],
            .layout = make_step_layout(step_config_, steps_[static_cast<size_t>(step)]),
            .empty_cache_at_start = false,
            .limit_bytes = limit_bytes};
  }

  const PresetFolder model_{"smolvlm-256m"};
  const VirtualGpu gpu_{.gpu = "h100", .memory_bytes = kUnlimited};
  const StepConfig step_config_ = make_step_config(2);
  std::vector<std::vector<SampleGroup>> steps_;
};

TEST_F(LookAheadTest, PredictsTheMemoryOfARun) {
  DryRunProcess process(model_.job(), gpu_);
  const DryRunResult run = process.dry_run({.step_config = step_config_, .steps = steps_});
  LookAheadProcess look_ahead(model_.job(), step_config_, gpu_);
  for (int64_t step = 0; step < std::ssize(steps_); ++step) look_ahead.submit(make_step(step));
  for (int64_t step = 0; step < std::ssize(steps_); ++step) {
    const auto forecast = look_ahead.wait_for_forecast(step, kTimeout);
    ASSERT_TRUE(forecast) << look_ahead.failure_message().value_or("late");
    EXPECT_TRUE(forecast->fits);
    EXPECT_EQ(forecast->num_attempts, 1);
    EXPECT_EQ(forecast->layout, make_step(step).layout);
    EXPECT_EQ(forecast->peaks.allocated_bytes, run.steps[static_cast<size_t>(step)].allocated_bytes) << step;
    EXPECT_EQ(forecast->peaks.reserved_bytes, run.steps[static_cast<size_t>(step)].reserved_bytes) << step;
  }
}

/// The model occupies more segments than the GPU reports memory for. The limit is a fraction of the
/// size that it reported before.
TEST_F(LookAheadTest, TheLimitIsAShareOfTheReportedMemory) {
  constexpr int64_t kReportedBytes = 80'000'000'000;
  LookAheadProcess look_ahead(model_.job(), step_config_,
                              {.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = kReportedBytes});
  look_ahead.submit(make_step(0, kReportedBytes - kReportedBytes / 10));
  const auto forecast = look_ahead.wait_for_forecast(0, kTimeout);
  ASSERT_TRUE(forecast) << look_ahead.failure_message().value_or("late");
  EXPECT_TRUE(forecast->fits);
  EXPECT_EQ(forecast->num_attempts, 1);
}

TEST_F(LookAheadTest, SplitsOnlyWhatDoesNotFit) {
  LookAheadProcess look_ahead(model_.job(), step_config_, gpu_);
  look_ahead.submit(make_step(0));
  const auto unlimited = look_ahead.wait_for_forecast(0, kTimeout);
  ASSERT_TRUE(unlimited);
  // The last sample of step 0 has four images. Alone it takes less than together with the previous
  // one.
  int64_t limit = unlimited->peaks.reserved_bytes;
  std::optional<MemoryForecast> split;
  for (int64_t step = 2; !split && step < 8; step += 2) {
    limit -= 64 * kMiB;
    LookAheadStep limited_step = make_step(0, limit);
    limited_step.step = step;
    look_ahead.submit(limited_step);
    const auto forecast = look_ahead.wait_for_forecast(step, kTimeout);
    ASSERT_TRUE(forecast);
    EXPECT_TRUE(forecast->fits);
    EXPECT_LE(forecast->peaks.reserved_bytes, limit);
    if (forecast->layout != limited_step.layout) split = forecast;
  }
  ASSERT_TRUE(split);
  EXPECT_TRUE(split->empty_cache_at_start);
  EXPECT_GT(split->num_attempts, 1);
  EXPECT_THAT(split->layout.split.sizes, testing::ElementsAre(2, 1, 1));
}

TEST_F(LookAheadTest, DisablesCopiesAheadBeforeSplitting) {
  steps_.assign(8, {{shape(4), 2}, {shape(1), 2}});
  LookAheadProcess look_ahead(model_.job(), step_config_, gpu_);
  look_ahead.submit(make_step(0));
  look_ahead.submit(make_step(1));
  ASSERT_TRUE(look_ahead.wait_for_forecast(0, kTimeout));
  int64_t limit = look_ahead.wait_for_forecast(1, kTimeout)->peaks.reserved_bytes;
  for (int64_t step = 2; step < 8; ++step) {
    limit -= 16 * kMiB;
    LookAheadStep limited_step = make_step(step, limit);
    look_ahead.submit(limited_step);
    const auto forecast = look_ahead.wait_for_forecast(step, kTimeout);
    ASSERT_TRUE(forecast && forecast->fits);
    if (forecast->layout == limited_step.layout) continue;
    EXPECT_FALSE(forecast->layout.copies_ahead);
    EXPECT_EQ(forecast->layout.split, limited_step.layout.split);
    return;
  }
  FAIL() << "an emptied cache was enough";
}

/// A margin lowers the limit of the look-ahead, not that of the run. Near its limit, an allocator
/// empties its cache in the middle of a step and needs less than an allocator with free memory.
/// Forecasts have no such steps.
TEST(LookAheadNearLimitTest, PredictsARunWithMoreMemory) {
  const PresetFolder model("smolvlm-tiny");
  const VirtualGpu gpu{.gpu = "rtx4090", .memory_bytes = kUnlimited};
  const StepConfig step_config = make_step_config(8);
  std::mt19937 random(6);
  const auto make_mixed_step = [&](int64_t number, int64_t limit_bytes) {
    LookAheadStep step{
        .step = number, .samples = {}, .layout = {}, .empty_cache_at_start = false, .limit_bytes = limit_bytes};
    for (int64_t sample = 0; sample < 16; ++sample) {
      step.samples.push_back({model.shape({.images = static_cast<int64_t>(random() % 5),
                                           .image_width = 300 + static_cast<int64_t>(random() % 700),
                                           .image_height = 200 + static_cast<int64_t>(random() % 1000),
                                           .text_tokens = 70 + static_cast<int64_t>(random() % 400)}),
                              1});
    }
    step.layout = make_step_layout(step_config, step.samples);
    return step;
  };
  LookAheadProcess look_ahead(model.job(), step_config, gpu);
  LookAheadProcess run(model.job(), step_config, gpu);  // follows the forecasts: its GPU has no limit
  int64_t num_split_steps = 0;
  for (int64_t number = 1; number <= 100; ++number) {
    LookAheadStep step = make_mixed_step(number, 84 * kMiB);
    look_ahead.submit(step);
    const auto forecast = look_ahead.wait_for_forecast(number, kTimeout);
    ASSERT_TRUE(forecast && forecast->fits) << number;
    if (forecast->layout != step.layout) ++num_split_steps;
    step.layout = forecast->layout;
    step.empty_cache_at_start = forecast->empty_cache_at_start;
    step.limit_bytes = kUnlimited;
    run.submit(step);
    const auto run_forecast = run.wait_for_forecast(number, kTimeout);
    ASSERT_TRUE(run_forecast);
    EXPECT_EQ(run_forecast->peaks.reserved_bytes, forecast->peaks.reserved_bytes) << number;
    EXPECT_EQ(run_forecast->peaks.allocated_bytes, forecast->peaks.allocated_bytes) << number;
  }
  EXPECT_GT(num_split_steps, 5);
  EXPECT_LT(num_split_steps, 90);
}

TEST_F(LookAheadTest, ReportsAStepThatDoesNotFitAndContinues) {
  LookAheadProcess look_ahead(model_.job(), step_config_, gpu_);
  look_ahead.submit(make_step(0, 64 * kMiB));
  look_ahead.submit(make_step(1));
  const auto unfit = look_ahead.wait_for_forecast(0, kTimeout);
  ASSERT_TRUE(unfit);
  EXPECT_FALSE(unfit->fits);
  const auto next = look_ahead.wait_for_forecast(1, kTimeout);
  ASSERT_TRUE(next);
  EXPECT_TRUE(next->fits);
}

TEST_F(LookAheadTest, WaitsNoLongerThanTheTimeout) {
  LookAheadProcess look_ahead(model_.job(), step_config_, gpu_);
  look_ahead.submit(make_step(0));
  EXPECT_FALSE(look_ahead.wait_for_forecast(0, std::chrono::milliseconds(1)));  // the child has not started yet
  EXPECT_TRUE(look_ahead.wait_for_forecast(0, kTimeout));
}

TEST_F(LookAheadTest, ReportsWhyItEnded) {
  Job broken = model_.job();
  broken.model = "/nowhere";
  LookAheadProcess look_ahead(broken, step_config_, gpu_);
  look_ahead.submit(make_step(0));
  EXPECT_FALSE(look_ahead.wait_for_forecast(0, kTimeout));
  ASSERT_TRUE(look_ahead.failure_message());
  EXPECT_THAT(*look_ahead.failure_message(), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace vlmtrain::planner
