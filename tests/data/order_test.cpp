#include "vlmtrain/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace vlmtrain::data {
namespace {

TEST(EpochOrder, IsAPermutationOfItsOwnForEachSeedAndEpoch) {
  auto order = epoch_order(100, 7, 0);
  EXPECT_EQ(order, epoch_order(100, 7, 0));
  EXPECT_NE(order, epoch_order(100, 7, 1));
  EXPECT_NE(order, epoch_order(100, 8, 0));
  std::sort(order.begin(), order.end());
  std::vector<int64_t> all(100);
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(order, all);
}

TEST(EpochOrder, OfBlocksKeepsThoseTogetherThatAreReadTogether) {
  const std::vector<int64_t> blocks{0, 10, 20, 30, 40, 50, 60, 70, 80, 90};
  const auto order = epoch_order_by_blocks(100, blocks, 7, 0);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> all(100);
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(sorted, all);
  EXPECT_NE(order, epoch_order_by_blocks(100, blocks, 7, 1));
  for (size_t first = 0; first < 100; first += 20) {
    std::set<int64_t> seen;
    for (size_t i = first; i < first + 20; ++i) seen.insert(order[i] / 10);
    EXPECT_EQ(seen.size(), 2U) << "blocks are mixed two by two";
  }
}

}  // namespace
}  // namespace vlmtrain::data
