#include "vlmtrain/engine/step_layout.h"

#include <gtest/gtest.h>

namespace vlmtrain::engine {
namespace {

using Sizes = std::vector<int64_t>;

TEST(StepLayoutTest, TheCutIsDividedAndTheRestStays) {
  const StepLayout layout{.cut = cut_in_order({3, 2, 4}), .recompute = {1, 2}, .loss_chunk_rows = 7};
  const auto smaller = with_smaller_micro_batches(layout, 1, Division::kOnlyThat);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->cut.sizes, (Sizes{3, 1, 1, 4}));
  EXPECT_EQ(smaller->recompute, layout.recompute);
  EXPECT_EQ(smaller->loss_chunk_rows, 7);
  EXPECT_EQ(smaller->splits_against(layout), 1);
}

TEST(StepLayoutTest, CopiesAheadAreGivenUpOnceAndOnlyWhereThereAreSome) {
  const StepLayout several{.cut = cut_in_order({2, 2}), .recompute = {}};
  const auto none = with_no_copies_ahead(several);
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->copies_ahead);
  EXPECT_EQ(none->cut, several.cut);
  EXPECT_FALSE(with_no_copies_ahead(*none));
  EXPECT_FALSE(with_no_copies_ahead({.cut = cut_in_order({4}), .recompute = {}}));
}

TEST(StepLayoutTest, TheLeastMemoryIsTakenOnce) {
  const models::RecomputeBlocks all{.vision = 2, .language = 3};
  const auto least = with_least_memory({.cut = cut_in_order({4}), .recompute = {}, .loss_chunk_rows = 1024}, all);
  ASSERT_TRUE(least);
  EXPECT_EQ(least->recompute, all);
  EXPECT_EQ(least->vision_tiles_per_pass, 1);
  EXPECT_LT(least->loss_chunk_rows, 1024);
  EXPECT_FALSE(least->copies_ahead);
  EXPECT_EQ(least->cut.sizes, Sizes{4});
  EXPECT_FALSE(with_least_memory(*least, all));
  const auto finer = with_least_memory({.cut = cut_in_order({4}), .recompute = {}, .loss_chunk_rows = 8}, all);
  EXPECT_EQ(finer->loss_chunk_rows, 8) << "what is smaller already stays";
}

}  // namespace
}  // namespace vlmtrain::engine
