#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "vlmtrain/base/hash.h"

namespace vlmtrain {
namespace {

TEST(RandomStream, MatchesThePublishedTestVector) {
  RandomStream random(1234567);  // the test vector of the reference implementation
  EXPECT_EQ(random.next(), 6457827717110365317U);
  EXPECT_EQ(random.next(), 3203168211198807973U);
}

TEST(StreamSeed, DiffersByNameAndPosition) {
  const std::set<uint64_t> seeds{derive_stream_seed(1, "order"), derive_stream_seed(2, "order"),
                                 derive_stream_seed(1, "init"), derive_stream_seed(1, "order", {1}),
                                 derive_stream_seed(1, "order", {1, 0})};
  EXPECT_EQ(seeds.size(), 5U);
}

TEST(Permutation, HoldsEachNumberOnceAndDependsOnTheSeed) {
  auto order = make_random_permutation(1000, 3);
  EXPECT_EQ(order, make_random_permutation(1000, 3));
  EXPECT_NE(order, make_random_permutation(1000, 4));
  std::sort(order.begin(), order.end());
  std::vector<int64_t> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_TRUE(make_random_permutation(0, 1).empty());
}

}  // namespace
}  // namespace vlmtrain
