#include "vlmtrain/data/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

Cursor start_of(int64_t lanes) {
  return {.lanes = std::vector<Place>(static_cast<size_t>(lanes)),
          .due = std::vector<double>(static_cast<size_t>(lanes)),
          .batches = 0};
}

std::vector<int64_t> counts_of(const LaneChooser& chooser, Cursor& cursor, int64_t draws) {
  std::vector<int64_t> counts(static_cast<size_t>(chooser.lanes()));
  for (int64_t i = 0; i < draws; ++i) ++counts[static_cast<size_t>(chooser.choose(cursor))];
  return counts;
}

TEST(LaneChooser, AStepHasItsSharesExactlyWhereWholeSamplesAllowIt) {
  const LaneChooser chooser({{.from_batch = 0, .shares = {2, 1, 1}}});
  Cursor cursor = start_of(3);
  for (int64_t step = 0; step < 100; ++step) EXPECT_THAT(counts_of(chooser, cursor, 16), ElementsAre(8, 4, 4)) << step;
}

TEST(LaneChooser, IsNeverASampleOffItsShares) {
  RandomStream random(5);
  for (int64_t trial = 0; trial < 60; ++trial) {
    const auto lanes = static_cast<size_t>(2 + random.below(9));
    std::vector<double> shares(lanes);
    for (double& share : shares) share = std::pow(10.0, -static_cast<double>(random.below(3000)) / 1000);
    const LaneChooser chooser({{.from_batch = 0, .shares = shares}});
    const auto& wanted = chooser.shares(0);
    Cursor cursor = start_of(static_cast<int64_t>(lanes));
    std::vector<int64_t> counts(lanes);
    for (int64_t draw = 1; draw <= 16'000; ++draw) {
      ++counts[static_cast<size_t>(chooser.choose(cursor))];
      for (size_t lane = 0; lane < lanes; ++lane) {
        ASSERT_LT(std::abs(static_cast<double>(counts[lane]) - static_cast<double>(draw) * wanted[lane]), 1.0 + 1e-6)
            << "trial " << trial << ", draw " << draw << ", lane " << lane;
      }
    }
  }
}

TEST(LaneChooser, GoesOnFromACursorAsIfItHadNotStopped) {
  const LaneChooser chooser({{.from_batch = 0, .shares = {0.61, 0.3, 0.09}}});
  Cursor whole = start_of(3);
  counts_of(chooser, whole, 77);
  Cursor resumed = whole;
  for (int64_t draw = 0; draw < 200; ++draw) EXPECT_EQ(chooser.choose(resumed), chooser.choose(whole));
}

TEST(LaneChooser, FollowsAScheduleAndGivesNothingToALaneWithoutShare) {
  const LaneChooser chooser({{.from_batch = 0, .shares = {1, 0}}, {.from_batch = 10, .shares = {1, 3}}});
  Cursor cursor = start_of(2);
  for (int64_t batch = 0; batch < 30; ++batch) {
    cursor.batches = batch;
    const auto counts = counts_of(chooser, cursor, 8);
    if (batch < 10) {
      EXPECT_THAT(counts, ElementsAre(8, 0)) << batch;
    } else {
      EXPECT_THAT(counts, ElementsAre(2, 6)) << batch;
    }
  }
  const LaneChooser falling({{.from_batch = 0, .shares = {1, 2}}, {.from_batch = 1, .shares = {1, 0}}});
  Cursor end = start_of(2);
  counts_of(falling, end, 8);
  end.batches = 1;
  EXPECT_THAT(counts_of(falling, end, 100), ElementsAre(100, 0));
}

}  // namespace
}  // namespace vlmtrain::data
