#include "vlmtrain/data/order/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace vlmtrain::data {
namespace {

TEST(EpochOrder, IsADifferentPermutationForEachSeedAndEpoch) {
  auto order = shuffle_epoch(100, 7, 0);
  EXPECT_EQ(order, shuffle_epoch(100, 7, 0));
  EXPECT_NE(order, shuffle_epoch(100, 7, 1));
  EXPECT_NE(order, shuffle_epoch(100, 8, 0));
  std::sort(order.begin(), order.end());
  std::vector<int64_t> indices(100);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  EXPECT_EQ(order, indices);
}

TEST(EpochOrder, ByBlocksKeepsSamplesOfABlockTogether) {
  std::vector<int64_t> blocks(10);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = 300 * static_cast<int64_t>(i);
  const auto order = shuffle_epoch_by_blocks(3000, blocks, 7, 0);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> indices(3000);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  EXPECT_EQ(sorted, indices);
  EXPECT_NE(order, shuffle_epoch_by_blocks(3000, blocks, 7, 1));
  for (size_t first = 0; first < 3000; first += 600) {
    std::set<int64_t> seen_blocks;
    for (size_t i = first; i < first + 600; ++i) seen_blocks.insert(order[i] / 300);
    EXPECT_EQ(seen_blocks.size(), 2U) << "blocks are mixed two by two";
  }
  // Small blocks are mixed until there are 512 samples.
  EXPECT_EQ(shuffle_epoch_by_blocks(11, {0, 4, 8}, 7, 0), shuffle_epoch(11, 7, 0));
}

}  // namespace
}  // namespace vlmtrain::data
