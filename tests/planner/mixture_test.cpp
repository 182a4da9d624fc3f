#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "vlmtrain/planner/workload.h"

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;

TEST(ApportionTest, CountsAreExactWhereSharesAreWholeNumbers) {
  EXPECT_THAT(apportion(std::vector{0.5, 0.25, 0.25}, 16), ElementsAre(8, 4, 4));
  EXPECT_THAT(apportion(std::vector{0.1, 0.2, 0.7}, 10), ElementsAre(1, 2, 7));
  EXPECT_THAT(apportion(std::vector{3.0, 1.0}, 8), ElementsAre(6, 2));
  EXPECT_THAT(apportion(std::vector{1.0}, 5), ElementsAre(5));
}

TEST(ApportionTest, LargestRemaindersGetTheRest) {
  EXPECT_THAT(apportion(std::vector{0.5, 0.3, 0.2}, 4), ElementsAre(2, 1, 1));  // 2, 1.2, 0.8
  EXPECT_THAT(apportion(std::vector{1.0, 1.0, 1.0}, 4), ElementsAre(2, 1, 1)) << "equal ones: the first";
  EXPECT_THAT(apportion(std::vector{0.98, 0.01, 0.01}, 16), ElementsAre(16, 0, 0));
  EXPECT_THAT(apportion(std::vector{0.0, 2.0}, 3), ElementsAre(0, 3));
}

TEST(ApportionTest, CountsAreWithinOneOfTheirShare) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<double> shares(1 + random() % 6);
    for (double& share : shares) share = std::uniform_real_distribution(0.01, 1.0)(random);
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    const auto count = static_cast<int64_t>(random() % 100);
    const auto counts = apportion(shares, count);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), count);
    for (size_t index = 0; index < shares.size(); ++index) {
      const double exact_count = shares[index] / sum * static_cast<double>(count);
      EXPECT_LT(std::abs(static_cast<double>(counts[index]) - exact_count), 1);
    }
  }
}

TEST(ApportionTest, EachPrefixHasNearlyTheShares) {
  EXPECT_THAT(interleave_evenly(std::vector<int64_t>{2, 1, 1}), ElementsAre(0, 1, 2, 0));
  const std::vector<int64_t> counts{50, 25, 24, 1};
  const auto sequence = interleave_evenly(counts);
  ASSERT_EQ(sequence.size(), 100U);
  std::vector<double> num_seen(counts.size());
  for (size_t position = 0; position < sequence.size(); ++position) {
    ++num_seen[sequence[position]];
    for (size_t index = 0; index < counts.size(); ++index) {
      const double share = static_cast<double>(counts[index]) * static_cast<double>(position + 1) / 100;
      EXPECT_LT(std::abs(num_seen[index] - share), 1.5) << position;
    }
  }
  for (size_t index = 0; index < counts.size(); ++index) EXPECT_EQ(num_seen[index], static_cast<double>(counts[index]));
}

}  // namespace
}  // namespace vlmtrain::planner
