#include "vlmtrain/engine/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace vlmtrain::engine {
namespace {

TEST(Schedule, WarmUpRisesToThePeakAndNeverStartsAtZero) {
  for (const auto shape : {ScheduleShape::kCosine, ScheduleShape::kLinear, ScheduleShape::kConstant}) {
    const Schedule schedule{shape, 4, 20};
    EXPECT_DOUBLE_EQ(schedule.factor(0), 0.25);
    EXPECT_DOUBLE_EQ(schedule.factor(1), 0.5);
    EXPECT_DOUBLE_EQ(schedule.factor(3), 1.0);
    EXPECT_DOUBLE_EQ(schedule.factor(4), 1.0);
  }
}

TEST(Schedule, CosineFallsToZero) {
  const Schedule schedule{ScheduleShape::kCosine, 4, 20};
  EXPECT_DOUBLE_EQ(schedule.factor(8), 0.5 * (1 + std::numbers::sqrt2 / 2));
  EXPECT_NEAR(schedule.factor(12), 0.5, 1e-15);
  EXPECT_NEAR(schedule.factor(19), 0.5 * (1 + std::cos(std::numbers::pi * 15 / 16)), 1e-15);
  EXPECT_GT(schedule.factor(19), 0.0);
  EXPECT_NEAR(schedule.factor(20), 0.0, 1e-15);
}

TEST(Schedule, LinearFallsByEqualSteps) {
  const Schedule schedule{ScheduleShape::kLinear, 2, 12};
  EXPECT_DOUBLE_EQ(schedule.factor(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.factor(3), 0.9);
  EXPECT_DOUBLE_EQ(schedule.factor(7), 0.5);
  EXPECT_NEAR(schedule.factor(11), 0.1, 1e-15);
}

TEST(Schedule, ConstantStays) {
  const Schedule schedule{ScheduleShape::kConstant, 0, 3};
  for (int64_t step = 0; step < 10; ++step) EXPECT_DOUBLE_EQ(schedule.factor(step), 1.0);
}

TEST(Schedule, IsZeroPastTheEnd) {
  EXPECT_DOUBLE_EQ((Schedule{ScheduleShape::kLinear, 0, 4}.factor(9)), 0.0);
  EXPECT_NEAR((Schedule{ScheduleShape::kCosine, 0, 4}.factor(9)), 0.0, 1e-15);
}

TEST(Schedule, EveryStepMayBeWarmUp) {
  const Schedule schedule{ScheduleShape::kCosine, 3, 3};
  EXPECT_DOUBLE_EQ(schedule.factor(2), 1.0);
  EXPECT_TRUE(std::isfinite(schedule.factor(3)));
}

TEST(Schedule, ASingleStepHasTheFullRate) {
  for (const auto shape : {ScheduleShape::kCosine, ScheduleShape::kLinear, ScheduleShape::kConstant})
    EXPECT_DOUBLE_EQ((Schedule{shape, 0, 1}.factor(0)), 1.0);
}

}  // namespace
}  // namespace vlmtrain::engine
