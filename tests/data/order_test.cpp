#include "vlmtrain/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

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

TEST(EpochSequence, GoesOnFromAnyCursorAcrossEpochs) {
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto order = epoch_order(5, 3, epoch);
    expected.insert(expected.end(), order.begin(), order.end());
  }
  Cursor cursor;
  for (size_t start = 0; start < expected.size(); ++start) {
    EpochSequence sequence(5, 3, cursor);
    for (size_t i = start; i < expected.size(); ++i) ASSERT_EQ(sequence.next(), expected[i]) << start << " " << i;
    cursor = after(cursor, 5);
  }
  EXPECT_EQ(cursor, (Cursor{3, 0}));
}

}  // namespace
}  // namespace vlmtrain::data
