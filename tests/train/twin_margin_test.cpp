#include "train/twin_margin.h"

#include <gtest/gtest.h>

namespace vlmtrain::train {
namespace {

constexpr int64_t kLimit = int64_t{20} << 30;
constexpr int64_t kMebibyte = 1 << 20;

int64_t good_steps_until_fall(TwinMargin& margin) {
  const int64_t before = margin.bytes();
  int64_t steps = 0;
  while (margin.bytes() == before && steps < 10'000) {
    margin.went_well(0);
    ++steps;
  }
  return steps;
}

TEST(TwinMarginTest, RisesWithAMissAndFallsWithGoodSteps) {
  TwinMargin margin(kLimit);
  EXPECT_EQ(margin.bytes(), 0);
  margin.raise();
  const int64_t raised = margin.bytes();
  EXPECT_EQ(raised, kLimit / 50);
  EXPECT_EQ(good_steps_until_fall(margin), 20);
  EXPECT_EQ(margin.bytes(), raised / 2);
  for (int64_t step = 0; step < 500; ++step) margin.went_well(0);
  EXPECT_EQ(margin.bytes(), 0);
}

TEST(TwinMarginTest, FallsMoreSlowlyAfterEveryFurtherMiss) {
  TwinMargin margin(kLimit);
  margin.raise();
  EXPECT_EQ(good_steps_until_fall(margin), 20);
  margin.raise();
  EXPECT_EQ(good_steps_until_fall(margin), 40);
  for (int64_t miss = 0; miss < 20; ++miss) margin.raise();
  EXPECT_EQ(good_steps_until_fall(margin), 640);
}

TEST(TwinMarginTest, AMissBeginsTheCountAnew) {
  TwinMargin margin(kLimit);
  margin.raise();
  for (int64_t step = 0; step < 19; ++step) margin.went_well(0);
  margin.raise();
  const int64_t raised = margin.bytes();
  margin.went_well(0);
  EXPECT_EQ(margin.bytes(), raised);
}

TEST(TwinMarginTest, LeavesThreeQuartersOfTheLimit) {
  TwinMargin margin(kLimit);
  for (int64_t miss = 0; miss < 1000; ++miss) margin.raise();
  EXPECT_EQ(margin.bytes(), kLimit / 4);
}

TEST(TwinMarginTest, HoldsWhatTheLastTwentyStepsTookMore) {
  TwinMargin margin(kLimit);
  margin.went_well(-5 * kMebibyte);
  EXPECT_EQ(margin.bytes(), 0) << "less than foreseen";
  margin.went_well(7 * kMebibyte);
  margin.went_well(3 * kMebibyte);
  EXPECT_EQ(margin.bytes(), 7 * kMebibyte);
  for (int64_t step = 0; step < 19; ++step) margin.went_well(0);
  EXPECT_EQ(margin.bytes(), 3 * kMebibyte);
  margin.went_well(0);
  EXPECT_EQ(margin.bytes(), 0);
}

}  // namespace
}  // namespace vlmtrain::train
