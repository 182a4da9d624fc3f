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

TEST(DrawnStepsTest, ARankHasItsShareOfAStep) {
  Workload workload{.candidates = {{.shapes = {{.tokens = 99}, {.tokens = 98}}, .first_id = "s"}},
                    .global_batch_size = 8,
                    .world_size = 2,
                    .drawn = {{}, {}}};
  for (int64_t i = 0; i < 8; ++i) workload.drawn[1].push_back({.tokens = i});
  workload.drawn[0] = {{.tokens = 5}};
  const auto steps = drawn_steps(workload);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0], workload.drawn[0]) << "a rank has a sample";
  EXPECT_EQ(steps[1], std::vector(workload.drawn[1].begin(), workload.drawn[1].begin() + 4));
  const auto worst = worst_steps(workload);
  ASSERT_EQ(worst.size(), 1U);
  ASSERT_EQ(worst[0].size(), 4U);
  EXPECT_EQ(worst[0][1].tokens, 98);
  EXPECT_EQ(worst[0][3].tokens, 98) << "the last stands for the rest";
  workload.drawn.clear();
  EXPECT_TRUE(drawn_steps(workload).empty());
}

/// Samples of a rank whose global batch counts packs.
int64_t samples_of(int64_t packs, double per_pack, int64_t world, int64_t micro_batch) {
  Workload workload{.candidates = {}, .global_batch_size = packs, .world_size = world};
  workload.packed = PackedSamples{.per_pack = per_pack, .micro_batch = micro_batch};
  return workload.samples_per_rank();
}

TEST(DrawnStepsTest, PacksHaveARoundNumberOfSamples) {
  EXPECT_EQ(samples_of(4, 17.8, 1, 0), 64) << "of 71.2";
  EXPECT_EQ(samples_of(4, 17.8, 2, 0), 40);
  EXPECT_EQ(samples_of(4, 17.8, 1, 5), 70);
  EXPECT_EQ(samples_of(4, 17.8, 1, 100), 100) << "one micro-batch, whatever its size";
  EXPECT_EQ(samples_of(1, 1, 1, 0), 1);
  EXPECT_EQ(samples_of(16, 1.1, 1, 0), 20);
  EXPECT_EQ(samples_of(1, 1023, 1, 0), 1024);
}

}  // namespace
}  // namespace vlmtrain::planner
