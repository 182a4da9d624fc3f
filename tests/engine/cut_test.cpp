#include "vlmtrain/engine/cut.h"

#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {
namespace {

using Numbers = std::vector<int64_t>;

/// The sizes of a cut that is divided; empty where there is nothing to divide.
Numbers divide(const Numbers& sizes, int64_t failed, Division division) {
  const auto smaller = divided(cut_in_order(sizes), failed, division);
  return smaller ? smaller->sizes : Numbers{};
}

TEST(CutTest, AMicroBatchThatFailedIsHalved) {
  EXPECT_EQ(divide({4, 4, 2}, 1, Division::kOnlyThat), (Numbers{4, 2, 2, 2}));
  EXPECT_EQ(divide({4, 5, 2}, 1, Division::kOnlyThat), (Numbers{4, 3, 2, 2}));
  EXPECT_EQ(divide({4, 3, 2}, 1, Division::kAllAsLarge), (Numbers{2, 2, 2, 1, 2}));
  EXPECT_EQ(divide({2, 4, 3}, -1, Division::kOnlyThat), (Numbers{2, 2, 2, 3})) << "none in particular: the largest";
}

TEST(CutTest, ASingleSampleIsNotDivided) {
  EXPECT_EQ(divide({4, 1}, 1, Division::kOnlyThat), Numbers{});
  EXPECT_EQ(divide({4, 1}, 1, Division::kAllAsLarge), Numbers{});
  EXPECT_EQ(divide({4, 1}, 1, Division::kSingles), (Numbers{1, 1, 1, 1, 1})) << "the others are";
  EXPECT_EQ(divide({1, 1}, 0, Division::kSingles), Numbers{});
}

TEST(CutTest, AMicroBatchIsItsPartOfTheOrder) {
  const Cut cut{.order = {4, 0, 3, 1, 2}, .sizes = {2, 3}};
  EXPECT_EQ(Numbers(cut.micro_batch(0).begin(), cut.micro_batch(0).end()), (Numbers{4, 0}));
  EXPECT_EQ(Numbers(cut.micro_batch(1).begin(), cut.micro_batch(1).end()), (Numbers{3, 1, 2}));
  EXPECT_EQ(divided(cut, 1, Division::kOnlyThat)->order, cut.order);
}

TEST(CutTest, WithoutARuleSamplesStayInTheirOrder) {
  const Cut cut = equal_cut(9, 4);
  EXPECT_EQ(cut.order, (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(cut.sizes, (Numbers{4, 4, 1}));
  EXPECT_EQ(cut, cut_in_order({4, 4, 1}));
}

TEST(CutTest, GroupsShareNoMicroBatchAndKeepTheirOrder) {
  const Cut cut = equal_cut(8, 2, {.groups = {1, 0, 1, 0, 2, 1, 0, 1}});
  EXPECT_EQ(cut.order, (Numbers{1, 3, 6, 0, 2, 5, 7, 4}));
  EXPECT_EQ(cut.sizes, (Numbers{2, 1, 2, 2, 1}));
}

TEST(CutTest, WhatStandsTogetherIsNotSeparated) {
  const Cut pairs = equal_cut(8, 5, {.unit = 2, .groups = {1, 1, 0, 0, 1, 1, 1, 1}});
  EXPECT_EQ(pairs.order, (Numbers{2, 3, 0, 1, 4, 5, 6, 7}));
  EXPECT_EQ(pairs.sizes, (Numbers{2, 4, 2})) << "two pairs are the most of five samples";
  const auto halves = divided(pairs, 1, Division::kOnlyThat);
  ASSERT_TRUE(halves);
  EXPECT_EQ(halves->sizes, (Numbers{2, 2, 2, 2}));
  EXPECT_FALSE(divided(*halves, 0, Division::kAllAsLarge)) << "a pair is not divided";
  EXPECT_EQ(divided(pairs, 0, Division::kSingles)->sizes, (Numbers{2, 2, 2, 2}));
  EXPECT_EQ(equal_cut(4, 1, {.unit = 2}).sizes, (Numbers{2, 2})) << "at least one";
  EXPECT_EQ(divided(equal_cut(6, 6, {.unit = 2}), 0, Division::kOnlyThat)->sizes, (Numbers{4, 2}));
  EXPECT_THROW(equal_cut(3, 2, {.unit = 2}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::engine
