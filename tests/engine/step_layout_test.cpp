#include "vlmtrain/engine/settings/step_layout.h"

#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

using Indices = std::vector<int64_t>;

/// Returns the sizes after subdivision; empty if nothing can be divided.
Indices get_subdivided_sizes(const Indices& sizes, int64_t failed, SubdivisionMode mode) {
  const auto smaller = subdivide_split(split_in_order(sizes), failed, mode);
  return smaller ? smaller->sizes : Indices{};
}

TEST(MicroBatchSplitTest, FailedMicroBatchIsHalved) {
  EXPECT_EQ(get_subdivided_sizes({4, 4, 2}, 1, SubdivisionMode::kFailedOnly), (Indices{4, 2, 2, 2}));
  EXPECT_EQ(get_subdivided_sizes({4, 5, 2}, 1, SubdivisionMode::kFailedOnly), (Indices{4, 3, 2, 2}));
  EXPECT_EQ(get_subdivided_sizes({4, 3, 2}, 1, SubdivisionMode::kAtLeastAsLarge), (Indices{2, 2, 2, 1, 2}));
  EXPECT_EQ(get_subdivided_sizes({2, 4, 3}, -1, SubdivisionMode::kFailedOnly), (Indices{2, 2, 2, 3}))
      << "none in particular: the largest";
}

TEST(MicroBatchSplitTest, SingleSampleIsNotSubdivided) {
  EXPECT_EQ(get_subdivided_sizes({4, 1}, 1, SubdivisionMode::kFailedOnly), Indices{});
  EXPECT_EQ(get_subdivided_sizes({4, 1}, 1, SubdivisionMode::kAtLeastAsLarge), Indices{});
  EXPECT_EQ(get_subdivided_sizes({4, 1}, 1, SubdivisionMode::kSingleSamples), (Indices{1, 1, 1, 1, 1}))
      << "the others are";
  EXPECT_EQ(get_subdivided_sizes({1, 1}, 0, SubdivisionMode::kSingleSamples), Indices{});
}

TEST(MicroBatchSplitTest, MicroBatchIsASliceOfTheOrder) {
  const MicroBatchSplit split{.order = {4, 0, 3, 1, 2}, .sizes = {2, 3}};
  EXPECT_EQ(Indices(split.get_sample_indices(0).begin(), split.get_sample_indices(0).end()), (Indices{4, 0}));
  EXPECT_EQ(Indices(split.get_sample_indices(1).begin(), split.get_sample_indices(1).end()), (Indices{3, 1, 2}));
  EXPECT_EQ(subdivide_split(split, 1, SubdivisionMode::kFailedOnly)->order, split.order);
}

TEST(MicroBatchSplitTest, WithoutConstraintSamplesKeepTheirOrder) {
  const MicroBatchSplit split = split_evenly(9, 4);
  EXPECT_EQ(split.order, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(split.sizes, (Indices{4, 4, 1}));
  EXPECT_EQ(split, split_in_order({4, 4, 1}));
}

TEST(MicroBatchSplitTest, GroupsShareNoMicroBatchAndKeepTheirOrder) {
  const MicroBatchSplit split = split_evenly(8, 2, {.groups = {1, 0, 1, 0, 2, 1, 0, 1}});
  EXPECT_EQ(split.order, (Indices{1, 3, 6, 0, 2, 5, 7, 4}));
  EXPECT_EQ(split.sizes, (Indices{2, 1, 2, 2, 1}));
}

TEST(MicroBatchSplitTest, UnitsAreNotSeparated) {
  const MicroBatchSplit pairs = split_evenly(8, 5, {.unit_size = 2, .groups = {1, 1, 0, 0, 1, 1, 1, 1}});
  EXPECT_EQ(pairs.order, (Indices{2, 3, 0, 1, 4, 5, 6, 7}));
  EXPECT_EQ(pairs.sizes, (Indices{2, 4, 2})) << "two pairs are the most of five samples";
  const auto halved_pairs = subdivide_split(pairs, 1, SubdivisionMode::kFailedOnly);
  ASSERT_TRUE(halved_pairs);
  EXPECT_EQ(halved_pairs->sizes, (Indices{2, 2, 2, 2}));
  EXPECT_FALSE(subdivide_split(*halved_pairs, 0, SubdivisionMode::kAtLeastAsLarge)) << "a pair is not divided";
  EXPECT_EQ(subdivide_split(pairs, 0, SubdivisionMode::kSingleSamples)->sizes, (Indices{2, 2, 2, 2}));
  EXPECT_EQ(split_evenly(4, 1, {.unit_size = 2}).sizes, (Indices{2, 2})) << "at least one";
  EXPECT_EQ(subdivide_split(split_evenly(6, 6, {.unit_size = 2}), 0, SubdivisionMode::kFailedOnly)->sizes,
            (Indices{4, 2}));
  EXPECT_THROW(split_evenly(3, 2, {.unit_size = 2}), InternalError);
}

using Sizes = std::vector<int64_t>;

TEST(StepLayoutTest, SplitIsSubdividedAndTheRestStays) {
  const StepLayout layout{.split = split_in_order({3, 2, 4}), .recompute = {1, 2}, .loss_chunk_rows = 7};
  const auto smaller = subdivide_micro_batches(layout, 1, SubdivisionMode::kFailedOnly);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->split.sizes, (Sizes{3, 1, 1, 4}));
  EXPECT_EQ(smaller->recompute, layout.recompute);
  EXPECT_EQ(smaller->loss_chunk_rows, 7);
  EXPECT_EQ(smaller->count_extra_micro_batches(layout), 1);
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
  const models::RecomputeBlockCounts all_blocks{.vision = 2, .language = 3};
  const auto minimal =
      minimize_layout_memory({.split = split_in_order({4}), .recompute = {}, .loss_chunk_rows = 1024}, all_blocks);
  ASSERT_TRUE(minimal);
  EXPECT_EQ(minimal->recompute, all_blocks);
  EXPECT_EQ(minimal->vision_tiles_per_pass, 1);
  EXPECT_LT(minimal->loss_chunk_rows, 1024);
  EXPECT_FALSE(minimal->copies_ahead);
  EXPECT_EQ(minimal->split.sizes, Sizes{4});
  EXPECT_FALSE(minimize_layout_memory(*minimal, all_blocks));
  const auto finer =
      minimize_layout_memory({.split = split_in_order({4}), .recompute = {}, .loss_chunk_rows = 8}, all_blocks);
  EXPECT_EQ(finer->loss_chunk_rows, 8) << "what is smaller already stays";
}

}  // namespace

}  // namespace vlmtrain::engine
