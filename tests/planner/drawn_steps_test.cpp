#include "vlmtrain/planner/drawn_steps.h"

#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

TEST(DrawnStepsTest, LargeStepsAreDrawnLessOften) {
  EXPECT_EQ(steps_to_draw(1), 48);
  EXPECT_EQ(steps_to_draw(16), 48);
  EXPECT_EQ(steps_to_draw(512), 8);
  EXPECT_EQ(steps_to_draw(5000), 4);
}

std::vector<data::SampleShape> samples_of(std::vector<int64_t> tokens) {
  std::vector<data::SampleShape> samples;
  for (const int64_t count : tokens) samples.push_back({.tokens = count});
  return samples;
}

TEST(DrawnStepsTest, OfAStepTheRankCountsThatTheOthersWaitFor) {
  Workload workload{.candidates = {}, .global_batch_size = 4, .world_size = 2, .drawn = {}};
  workload.drawn = {
      {samples_of({5}), {}}, {samples_of({3, 4}), samples_of({9, 1})}, {samples_of({2}), samples_of({2})}};
  const auto steps = drawn_steps(workload);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0], samples_of({5})) << "the other one had bad samples only";
  EXPECT_EQ(steps[1], samples_of({9, 1}));
  EXPECT_EQ(steps[2], samples_of({2}));

  const auto largest = largest_parts(workload);
  ASSERT_EQ(largest.size(), 2U);
  EXPECT_EQ(largest[0].rank, 0);
  EXPECT_EQ(largest[0].step, 1);
  EXPECT_EQ(largest[0].tokens(), 7);
  EXPECT_EQ(largest[1].rank, 1);
  EXPECT_EQ(largest[1].step, 1);
  EXPECT_EQ(largest[1].tokens(), 10);
  workload.drawn.clear();
  EXPECT_TRUE(drawn_steps(workload).empty());
  EXPECT_TRUE(largest_parts(workload).empty());
}

TEST(DrawnStepsTest, ARankMayHaveAllTheLargest) {
  const Workload workload{.candidates = {{.shapes = {{.tokens = 99}, {.tokens = 98}}, .first_id = "s"}},
                          .global_batch_size = 8,
                          .world_size = 2,
                          .drawn = {}};
  const auto worst = worst_steps(workload);
  ASSERT_EQ(worst.size(), 1U);
  ASSERT_EQ(worst[0].size(), 4U);
  EXPECT_EQ(worst[0][1].tokens, 98);
  EXPECT_EQ(worst[0][3].tokens, 98) << "the last stands for the rest";
}

/// Samples of a rank whose global batch counts packs.
int64_t packed_samples_of(int64_t packs, double per_pack, int64_t world, int64_t micro_batch) {
  Workload workload{.candidates = {}, .global_batch_size = packs, .world_size = world};
  workload.packed = PackedSamples{.per_pack = per_pack, .micro_batch = micro_batch};
  return workload.samples_per_rank();
}

TEST(DrawnStepsTest, PacksHaveARoundNumberOfSamples) {
  EXPECT_EQ(packed_samples_of(4, 17.8, 1, 0), 64) << "of 71.2";
  EXPECT_EQ(packed_samples_of(4, 17.8, 2, 0), 40);
  EXPECT_EQ(packed_samples_of(4, 17.8, 1, 5), 70);
  EXPECT_EQ(packed_samples_of(4, 17.8, 1, 100), 100) << "one micro-batch, whatever its size";
  EXPECT_EQ(packed_samples_of(1, 1, 1, 0), 1);
  EXPECT_EQ(packed_samples_of(16, 1.1, 1, 0), 20);
  EXPECT_EQ(packed_samples_of(1, 1023, 1, 0), 1024);
}

}  // namespace
}  // namespace vlmtrain::planner
