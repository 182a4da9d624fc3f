#include "vlmtrain/planner/drawn_steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace vlmtrain::planner {
namespace {

std::vector<MeasuredSample> samples_of(int64_t count) {
  std::vector<MeasuredSample> samples;
  for (int64_t i = 0; i < count; ++i) samples.push_back({fmt::format("s{}", i), {.tokens = 10 + i}});
  return samples;
}

TEST(DrawnStepsTest, EachSampleComesOnceBeforeAnyComesAgain) {
  const auto drawn = draw_samples(samples_of(20), 4, /*seed=*/1);
  ASSERT_EQ(drawn.size(), 48U * 4);
  std::set<int64_t> first;
  for (size_t i = 0; i < 20; ++i) first.insert(drawn[i].tokens);
  EXPECT_EQ(first.size(), 20U);
  EXPECT_EQ(drawn[20], drawn[0]);
}

TEST(DrawnStepsTest, TheOrderFollowsFromTheSeed) {
  const auto samples = samples_of(500);
  EXPECT_EQ(draw_samples(samples, 8, 1), draw_samples(samples, 8, 1));
  EXPECT_NE(draw_samples(samples, 8, 1), draw_samples(samples, 8, 2));
}

TEST(DrawnStepsTest, LargeBatchesAreDrawnLessOften) {
  EXPECT_EQ(draw_samples(samples_of(3), 512, 1).size(), 4096U);
  EXPECT_EQ(draw_samples(samples_of(3), 5000, 1).size(), 20'000U);
}

TEST(DrawnStepsTest, ARankHasItsShareOfAStep) {
  Workload workload{.candidates = {{.shapes = {{.tokens = 99}, {.tokens = 98}}, .first_id = "s"}},
                    .global_batch_size = 8,
                    .world_size = 2,
                    .drawn = draw_samples(samples_of(30), 8, 1)};
  const auto steps = drawn_steps(workload);
  ASSERT_EQ(steps.size(), 96U);
  EXPECT_EQ(steps[1], std::vector(workload.drawn.begin() + 4, workload.drawn.begin() + 8));
  const auto worst = worst_steps(workload);
  ASSERT_EQ(worst.size(), 1U);
  ASSERT_EQ(worst[0].size(), 4U);
  EXPECT_EQ(worst[0][1].tokens, 98);
  EXPECT_EQ(worst[0][3].tokens, 98) << "the last stands for the rest";
  workload.drawn.clear();
  EXPECT_TRUE(drawn_steps(workload).empty());
}

}  // namespace
}  // namespace vlmtrain::planner
