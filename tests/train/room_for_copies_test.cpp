#include "train/room_for_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace vlmtrain::train {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;

HostFigures figures_of(int64_t room, int64_t own, int64_t planned, int64_t plan_leaves) {
  HostFigures figures;
  figures.room.bytes = room * kGigabyte;
  figures.room.bound = "free memory of the machine";
  figures.own_bytes = own * kGigabyte;
  figures.planned_bytes = planned * kGigabyte;
  figures.plan_leaves_bytes = plan_leaves * kGigabyte;
  return figures;
}

TEST(RoomForCopiesTest, IsWhatIsFreeLessTheMarginAndWhatStepsWillTake) {
  const auto room = room_for_copies(figures_of(20, 4, 7, 100), /*margin_percent=*/5);
  EXPECT_EQ(room.bytes, (20 - 4 - 1 - 3) * kGigabyte);
  EXPECT_EQ(room.bound, "free memory of the machine");
}

TEST(RoomForCopiesTest, IsNoMoreThanThePlanLeaves) {
  const auto room = room_for_copies(figures_of(20, 4, 7, 2), 5);
  EXPECT_EQ(room.bytes, 2 * kGigabyte);
  EXPECT_THAT(room.bound, testing::HasSubstr("plan.json"));
}

TEST(RoomForCopiesTest, OfSeveralRanksAllGrow) {
  auto figures = figures_of(20, 4, 7, 100);
  figures.ranks = 3;
  EXPECT_EQ(room_for_copies(figures, 5).bytes, (20 - 4 - 1 - 9) * kGigabyte);
}

TEST(RoomForCopiesTest, IsNothingWhereOthersTookWhatWasPlanned) {
  EXPECT_EQ(room_for_copies(figures_of(5, 4, 7, 100), 5).bytes, 0);
}

TEST(RoomForCopiesTest, OnAGpuOnlyTheHostCounts) {
  const auto room = room_for_copies(nullptr, planner::Mode::kBalanced, 1);
  EXPECT_GT(room.bytes, 0);
  EXPECT_LT(room.bytes, memory::machine_bytes());
}

}  // namespace
}  // namespace vlmtrain::train
