#include "vlmtrain/engine/step_layout.h"

#include <gtest/gtest.h>

namespace vlmtrain::engine {
namespace {

using Sizes = std::vector<int64_t>;

/// The sizes after a cut; empty where there is none.
Sizes cut(const Sizes& sizes, int64_t failed, Cut how) {
  const auto smaller = with_smaller_micro_batches({.micro_batches = sizes, .recompute = {}}, failed, how);
  return smaller ? smaller->micro_batches : Sizes{};
}

TEST(StepLayoutTest, AMicroBatchThatFailedIsHalved) {
  EXPECT_EQ(cut({4, 4, 2}, 1, Cut::kOnlyThat), (Sizes{4, 2, 2, 2}));
  EXPECT_EQ(cut({4, 5, 2}, 1, Cut::kOnlyThat), (Sizes{4, 3, 2, 2}));
  EXPECT_EQ(cut({4, 3, 2}, 1, Cut::kAllAsLarge), (Sizes{2, 2, 2, 1, 2}));
  EXPECT_EQ(cut({2, 4, 3}, -1, Cut::kOnlyThat), (Sizes{2, 2, 2, 3})) << "none in particular: the largest";
}

TEST(StepLayoutTest, ASingleSampleIsNotCut) {
  EXPECT_EQ(cut({4, 1}, 1, Cut::kOnlyThat), Sizes{});
  EXPECT_EQ(cut({4, 1}, 1, Cut::kAllAsLarge), Sizes{});
  EXPECT_EQ(cut({4, 1}, 1, Cut::kSingles), (Sizes{1, 1, 1, 1, 1})) << "the others are";
  EXPECT_EQ(cut({1, 1}, 0, Cut::kSingles), Sizes{});
}

TEST(StepLayoutTest, SamplesAreCountedFromTheFirst) {
  const StepLayout layout{.micro_batches = {3, 2, 4}, .recompute = {}};
  EXPECT_EQ(layout.first_sample(0), 0);
  EXPECT_EQ(layout.first_sample(2), 5);
  EXPECT_EQ(layout.splits_against({.micro_batches = {5, 4}, .recompute = {}}), 1);
  EXPECT_EQ(equal_micro_batches(9, 4), (Sizes{4, 4, 1}));
}

TEST(StepLayoutTest, TheLeastMemoryIsTakenOnce) {
  const models::RecomputeBlocks all{.vision = 2, .language = 3};
  const auto least = with_least_memory({.micro_batches = {4}, .recompute = {}, .loss_chunk_rows = 1024}, all);
  ASSERT_TRUE(least);
  EXPECT_EQ(least->recompute, all);
  EXPECT_EQ(least->vision_tiles_per_pass, 1);
  EXPECT_LT(least->loss_chunk_rows, 1024);
  EXPECT_EQ(least->micro_batches, Sizes{4});
  EXPECT_FALSE(with_least_memory(*least, all));
  const auto finer = with_least_memory({.micro_batches = {4}, .recompute = {}, .loss_chunk_rows = 8}, all);
  EXPECT_EQ(finer->loss_chunk_rows, 8) << "what is smaller already stays";
}

}  // namespace
}  // namespace vlmtrain::engine
