#include "train/twin_margin.h"

#include <gtest/gtest.h>

namespace vlmtrain::train {
namespace {

constexpr int64_t kLimit = int64_t{20} << 30;
constexpr int64_t kMebibyte = 1 << 20;

int64_t count_steps_until_decrease(LookAheadMargin& margin) {
  const int64_t bytes_before = margin.bytes();
  int64_t steps = 0;
  while (margin.bytes() == bytes_before && steps < 10'000) {
    margin.record_success(0);
    ++steps;
  }
  return steps;
}

TEST(LookAheadMarginTest, RisesAfterOutOfMemoryAndFallsWithGoodSteps) {
  LookAheadMargin margin(kLimit);
  EXPECT_EQ(margin.bytes(), 0);
  margin.raise();
  const int64_t raised_bytes = margin.bytes();
  EXPECT_EQ(raised_bytes, kLimit / 50);
  EXPECT_EQ(count_steps_until_decrease(margin), 20);
  EXPECT_EQ(margin.bytes(), raised_bytes / 2);
  for (int64_t step = 0; step < 500; ++step) margin.record_success(0);
  EXPECT_EQ(margin.bytes(), 0);
}

TEST(LookAheadMarginTest, FallsMoreSlowlyAfterRepeatedOutOfMemory) {
  LookAheadMargin margin(kLimit);
  margin.raise();
  EXPECT_EQ(count_steps_until_decrease(margin), 20);
  margin.raise();
  EXPECT_EQ(count_steps_until_decrease(margin), 40);
  for (int64_t miss = 0; miss < 20; ++miss) margin.raise();
  EXPECT_EQ(count_steps_until_decrease(margin), 640);
}

TEST(LookAheadMarginTest, OutOfMemoryRestartsTheCount) {
  LookAheadMargin margin(kLimit);
  margin.raise();
  for (int64_t step = 0; step < 19; ++step) margin.record_success(0);
  margin.raise();
  const int64_t raised_bytes = margin.bytes();
  margin.record_success(0);
  EXPECT_EQ(margin.bytes(), raised_bytes);
}

TEST(LookAheadMarginTest, LeavesThreeQuartersOfTheLimit) {
  LookAheadMargin margin(kLimit);
  for (int64_t miss = 0; miss < 1000; ++miss) margin.raise();
  EXPECT_EQ(margin.bytes(), kLimit / 4);
}

TEST(LookAheadMarginTest, CoversTheExcessOfTheLastTwentySteps) {
  LookAheadMargin margin(kLimit);
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

}  // namespace
}  // namespace vlmtrain::train
