#include "vlmtrain/planner/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;

TEST(Mixture, CountsAreExactWhereSharesAreWholeNumbers) {
  EXPECT_THAT(counts_by_share(std::vector{0.5, 0.25, 0.25}, 16), ElementsAre(8, 4, 4));
  EXPECT_THAT(counts_by_share(std::vector{0.1, 0.2, 0.7}, 10), ElementsAre(1, 2, 7));
  EXPECT_THAT(counts_by_share(std::vector{3.0, 1.0}, 8), ElementsAre(6, 2));
  EXPECT_THAT(counts_by_share(std::vector{1.0}, 5), ElementsAre(5));
}

TEST(Mixture, LargestRemaindersGetWhatIsLeft) {
  EXPECT_THAT(counts_by_share(std::vector{0.5, 0.3, 0.2}, 4), ElementsAre(2, 1, 1));  // 2, 1.2, 0.8
  EXPECT_THAT(counts_by_share(std::vector{1.0, 1.0, 1.0}, 4), ElementsAre(2, 1, 1)) << "equal ones: the first";
  EXPECT_THAT(counts_by_share(std::vector{0.98, 0.01, 0.01}, 16), ElementsAre(16, 0, 0));
  EXPECT_THAT(counts_by_share(std::vector{0.0, 2.0}, 3), ElementsAre(0, 3));
}

TEST(Mixture, NoCountIsASampleFromItsShareAndTheirSumIsExact) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<double> shares(1 + random() % 6);
    for (double& share : shares) share = std::uniform_real_distribution(0.01, 1.0)(random);
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    const auto count = static_cast<int64_t>(random() % 100);
    const auto counts = counts_by_share(shares, count);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), count);
    for (size_t kind = 0; kind < shares.size(); ++kind) {
      const double exact = shares[kind] / sum * static_cast<double>(count);
      EXPECT_LT(std::abs(static_cast<double>(counts[kind]) - exact), 1);
    }
  }
}

TEST(Mixture, EachStretchHasNearlyTheShares) {
  EXPECT_THAT(spread_evenly(std::vector<int64_t>{2, 1, 1}), ElementsAre(0, 1, 2, 0));
  const std::vector<int64_t> counts{50, 25, 24, 1};
  const auto kinds = spread_evenly(counts);
  ASSERT_EQ(kinds.size(), 100U);
  std::vector<double> seen(counts.size());
  for (size_t place = 0; place < kinds.size(); ++place) {
    ++seen[kinds[place]];
    for (size_t kind = 0; kind < counts.size(); ++kind) {
      const double share = static_cast<double>(counts[kind]) * static_cast<double>(place + 1) / 100;
      EXPECT_LT(std::abs(seen[kind] - share), 1.5) << place;
    }
  }
  for (size_t kind = 0; kind < counts.size(); ++kind) EXPECT_EQ(seen[kind], static_cast<double>(counts[kind]));
}

}  // namespace
}  // namespace vlmtrain::planner
