#include "vlmtrain/engine/step_layout.h"

#include <gtest/gtest.h>

namespace vlmtrain::engine {
namespace {

using Sizes = std::vector<int64_t>;

TEST(StepLayoutTest, SplitIsSubdividedAndTheRestStays) {
  const StepLayout layout{.split = split_in_order({3, 2, 4}), .recompute = {1, 2}, .loss_chunk_rows = 7};
  const auto smaller = subdivide_micro_batches(layout, 1, SubdivisionMode::kFailedOnly);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->split.sizes, (Sizes{3, 1, 1, 4}));
  EXPECT_EQ(smaller->recompute, layout.recompute);
  EXPECT_EQ(smaller->loss_chunk_rows, 7);
  EXPECT_EQ(smaller->count_extra_splits(layout), 1);
}

TEST(StepLayoutTest, CopyAheadIsDisabledOnlyOnce) {
  const StepLayout two_micro_batches{.split = split_in_order({2, 2}), .recompute = {}};
  const auto without_copies = disable_copy_ahead(two_micro_batches);
  ASSERT_TRUE(without_copies);
  EXPECT_FALSE(without_copies->copies_ahead);
  EXPECT_EQ(without_copies->split, two_micro_batches.split);
  EXPECT_FALSE(disable_copy_ahead(*without_copies));
  EXPECT_FALSE(disable_copy_ahead({.split = split_in_order({4}), .recompute = {}}));
}

TEST(StepLayoutTest, MemoryIsMinimizedOnce) {
  const models::RecomputeBlocks all_blocks{.vision = 2, .language = 3};
  const auto minimal =
      minimize_memory({.split = split_in_order({4}), .recompute = {}, .loss_chunk_rows = 1024}, all_blocks);
  ASSERT_TRUE(minimal);
  EXPECT_EQ(minimal->recompute, all_blocks);
  EXPECT_EQ(minimal->vision_tiles_per_pass, 1);
  EXPECT_LT(minimal->loss_chunk_rows, 1024);
  EXPECT_FALSE(minimal->copies_ahead);
  EXPECT_EQ(minimal->split.sizes, Sizes{4});
  EXPECT_FALSE(minimize_memory(*minimal, all_blocks));
  const auto finer = minimize_memory({.split = split_in_order({4}), .recompute = {}, .loss_chunk_rows = 8}, all_blocks);
  EXPECT_EQ(finer->loss_chunk_rows, 8) << "what is smaller already stays";
}

}  // namespace
}  // namespace vlmtrain::engine
