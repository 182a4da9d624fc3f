#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/order/draws.h"

namespace vlmtrain::data {

namespace {

using testing::ElementsAre;

Cursor make_cursor(int64_t num_sources) {
  return {.sources = std::vector<EpochPosition>(static_cast<size_t>(num_sources)),
          .source_deficits = std::vector<double>(static_cast<size_t>(num_sources)),
          .num_batches = 0};
}

std::vector<int64_t> count_draws(const MixtureSampler& sampler, Cursor& cursor, int64_t draws) {
  std::vector<int64_t> counts(static_cast<size_t>(sampler.num_sources()));
  for (int64_t i = 0; i < draws; ++i) ++counts[static_cast<size_t>(sampler.draw_source(cursor))];
  return counts;
}

TEST(MixtureSampler, GivesExactSharesWherePossible) {
  const MixtureSampler sampler({{.first_batch = 0, .shares = {2, 1, 1}}});
  Cursor cursor = make_cursor(3);
  for (int64_t step = 0; step < 100; ++step)
    EXPECT_THAT(count_draws(sampler, cursor, 16), ElementsAre(8, 4, 4)) << step;
}

TEST(MixtureSampler, StaysWithinOneSampleOfItsShares) {
  RandomStream random(5);
  for (int64_t round = 0; round < 60; ++round) {
    const auto num_sources = static_cast<size_t>(2 + random.uniform(9));
    std::vector<double> shares(num_sources);
    for (double& share : shares) share = std::pow(10.0, -static_cast<double>(random.uniform(3000)) / 1000);
    const MixtureSampler sampler({{.first_batch = 0, .shares = shares}});
    const auto& expected_shares = sampler.shares(0);
    Cursor cursor = make_cursor(static_cast<int64_t>(num_sources));
    std::vector<int64_t> counts(num_sources);
    for (int64_t draw = 1; draw <= 16'000; ++draw) {
      ++counts[static_cast<size_t>(sampler.draw_source(cursor))];
      for (size_t source = 0; source < num_sources; ++source) {
        ASSERT_LT(std::abs(static_cast<double>(counts[source]) - static_cast<double>(draw) * expected_shares[source]),
                  1.0 + 1e-6)
            << "trial " << round << ", draw " << draw << ", lane " << source;
      }
    }
  }
}

TEST(MixtureSampler, ResumesAtACursor) {
  const MixtureSampler sampler({{.first_batch = 0, .shares = {0.61, 0.3, 0.09}}});
  Cursor uninterrupted = make_cursor(3);
  count_draws(sampler, uninterrupted, 77);
  Cursor resumed = uninterrupted;
  for (int64_t draw = 0; draw < 200; ++draw)
    EXPECT_EQ(sampler.draw_source(resumed), sampler.draw_source(uninterrupted));
}

TEST(MixtureSampler, FollowsAScheduleAndSkipsSourcesWithoutShare) {
  const MixtureSampler sampler({{.first_batch = 0, .shares = {1, 0}}, {.first_batch = 10, .shares = {1, 3}}});
  Cursor cursor = make_cursor(2);
  for (int64_t batch = 0; batch < 30; ++batch) {
    cursor.num_batches = batch;
    const auto counts = count_draws(sampler, cursor, 8);
    if (batch < 10) {
      EXPECT_THAT(counts, ElementsAre(8, 0)) << batch;
    } else {
      EXPECT_THAT(counts, ElementsAre(2, 6)) << batch;
    }
  }
  const MixtureSampler decreasing({{.first_batch = 0, .shares = {1, 2}}, {.first_batch = 1, .shares = {1, 0}}});
  Cursor end = make_cursor(2);
  count_draws(decreasing, end, 8);
  end.num_batches = 1;
  EXPECT_THAT(count_draws(decreasing, end, 100), ElementsAre(100, 0));
}

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
