#include "train/room_for_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace vlmtrain::train {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;

AsyncSaveInputs make_inputs(int64_t available_gb, int64_t process_gb, int64_t planned_gb, int64_t plan_remaining_gb) {
  AsyncSaveInputs inputs;
  inputs.available.bytes = available_gb * kGigabyte;
  inputs.available.limit_source = "free memory of the machine";
  inputs.process_bytes = process_gb * kGigabyte;
  inputs.planned_bytes = planned_gb * kGigabyte;
  inputs.plan_remaining_bytes = plan_remaining_gb * kGigabyte;
  return inputs;
}

TEST(AsyncSaveBudgetTest, IsFreeMemoryLessMarginAndGrowth) {
  const auto budget = compute_async_save_budget(make_inputs(20, 4, 7, 100), /*margin_percent=*/5);
  EXPECT_EQ(budget.bytes, (20 - 4 - 1 - 3) * kGigabyte);
  EXPECT_EQ(budget.limit_source, "free memory of the machine");
}

TEST(AsyncSaveBudgetTest, IsLimitedByThePlan) {
  const auto budget = compute_async_save_budget(make_inputs(20, 4, 7, 2), 5);
  EXPECT_EQ(budget.bytes, 2 * kGigabyte);
  EXPECT_THAT(budget.limit_source, testing::HasSubstr("plan.json"));
}

TEST(AsyncSaveBudgetTest, CountsTheGrowthOfAllRanks) {
  auto inputs = make_inputs(20, 4, 7, 100);
  inputs.ranks = 3;
  EXPECT_EQ(compute_async_save_budget(inputs, 5).bytes, (20 - 4 - 1 - 9) * kGigabyte);
}

TEST(AsyncSaveBudgetTest, IsZeroWithoutFreeMemory) {
  EXPECT_EQ(compute_async_save_budget(make_inputs(5, 4, 7, 100), 5).bytes, 0);
}

TEST(AsyncSaveBudgetTest, OnAGpuOnlyHostMemoryCounts) {
  const auto budget = compute_async_save_budget(nullptr, planner::MemoryMode::kBalanced, 1);
  EXPECT_GT(budget.bytes, 0);
  EXPECT_LT(budget.bytes, memory::machine_bytes());
}

}  // namespace
}  // namespace vlmtrain::train
