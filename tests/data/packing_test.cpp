#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/order/draws.h"
#include "vlmtrain/data/order/sample_order.h"

namespace vlmtrain::data {

namespace {

using testing::ElementsAre;

/// Returns log-normal lengths with zero to four images.
std::vector<SampleSize> make_random_sizes(int64_t count, uint64_t seed) {
  RandomStream random(seed);
  const auto uniform = [&] { return (static_cast<double>(random.uniform(1'000'000)) + 0.5) / 1e6; };
  std::vector<SampleSize> sizes(static_cast<size_t>(count));
  for (auto& size : sizes) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform());
    size.num_media = static_cast<int64_t>(random.uniform(5));
    size.tiles = size.num_media * static_cast<int64_t>(1 + random.uniform(4));
    size.tokens = std::clamp<int64_t>(std::llround(std::exp(5.5 + 0.8 * normal)) + 64 * size.num_media, 8, 4096);
  }
  return sizes;
}

std::vector<int64_t> make_order(int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

TEST(Pack, UsesEachSampleOnceWithinLimits) {
  const auto sizes = make_random_sizes(5000, 3);
  const PackLimits limits{.max_tokens = 4096, .max_media = 18, .max_tiles = 30, .window_size = 700};
  const PackedSamples packs = make_packs(make_order(5000), sizes, limits, 1);
  const std::set<int64_t> unique_samples(packs.samples.begin(), packs.samples.end());
  EXPECT_EQ(packs.samples.size(), 5000U);
  EXPECT_EQ(unique_samples.size(), 5000U);
  int64_t first = 0;
  for (const int64_t end : packs.pack_ends) {
    SampleSize sum;
    for (; first < end; ++first) {
      const auto& size = sizes[static_cast<size_t>(packs.samples[static_cast<size_t>(first)])];
      sum.tokens += size.tokens;
      sum.num_media += size.num_media;
      sum.tiles += size.tiles;
    }
    ASSERT_TRUE(limits.fits(sum)) << sum.tokens << " tokens, " << sum.num_media << " images, " << sum.tiles << " tiles";
  }
  EXPECT_EQ(first, 5000);
}

TEST(Pack, IsAFunctionOfItsArguments) {
  const auto sizes = make_random_sizes(300, 4);
  const auto order = make_order(300);
  EXPECT_EQ(make_packs(order, sizes, {}, 1).samples, make_packs(order, sizes, {}, 1).samples);
  EXPECT_NE(make_packs(order, sizes, {}, 1).samples, make_packs(order, sizes, {}, 2).samples) << "packs are shuffled";
}

TEST(Pack, WindowsFillAsWellAsTheWholeEpoch) {
  const auto sizes = make_random_sizes(10'000, 5);
  for (const int64_t images : {18, 1000}) {
    const PackLimits whole{.max_tokens = 4096, .max_media = images, .window_size = 10'000};
    const PackLimits windows{.max_tokens = 4096, .max_media = images};
    const auto best = make_packs(make_order(10'000), sizes, whole, 1);
    const auto windowed = make_packs(make_order(10'000), sizes, windows, 1);
    EXPECT_LE(static_cast<double>(windowed.pack_ends.size()), static_cast<double>(best.pack_ends.size()) / 0.98);
  }
}

TEST(Pack, ReportsTheLimitingFactor) {
  const std::vector<SampleSize> image_sizes(100, {.tokens = 100, .num_media = 1, .tiles = 1});
  const PackLimits limits{.max_tokens = 4096, .max_media = 18};
  const auto packs = make_packs(make_order(100), image_sizes, limits, 1);
  const PackFill fill = compute_pack_statistics(packs, image_sizes, limits).fill;
  EXPECT_EQ(fill.num_packs, 6);
  EXPECT_EQ(fill.num_media_limited_packs, 5) << "the last has ten";
  EXPECT_NEAR(fill.token_fill, 10'000.0 / (6 * 4096), 1e-12);
  EXPECT_NEAR(fill.media_fill, 100.0 / (6 * 18), 1e-12);
  EXPECT_EQ(fill.max_tiles, 18);
}

TEST(PackStatisticsTest, ReportsTheLimitingFactor) {
  const std::vector<SampleSize> sizes{{.tokens = 90, .num_media = 1, .tiles = 2},
                                      {.tokens = 20, .num_media = 1, .tiles = 7},
                                      {.tokens = 30, .num_media = 1, .tiles = 2},
                                      {.tokens = 20, .num_media = 0, .tiles = 0},
                                      {.tokens = 50, .num_media = 1, .tiles = 9}};
  const PackLimits limits{.max_tokens = 100, .max_media = 2, .max_tiles = 9};
  // Limited by tokens; by images; by tiles; and one below all limits.
  const PackedSamples packs{.samples = {0, 1, 2, 4, 3}, .pack_ends = {1, 3, 4, 5}};
  const PackStatistics statistics = compute_pack_statistics(packs, sizes, limits);
  EXPECT_EQ(statistics.fill.num_packs, 4);
  EXPECT_EQ(statistics.num_packs_at_media_limit, 1);
  EXPECT_EQ(statistics.num_packs_at_tile_limit, 1);
  EXPECT_EQ(statistics.num_token_limited_packs(), 2);
  EXPECT_EQ(statistics.num_packs_at_media_limit + statistics.num_packs_at_tile_limit,
            statistics.fill.num_media_limited_packs)
      << "as in the log of a run";
  EXPECT_THAT(statistics.pack_sample_counts, ElementsAre(1, 2, 1, 1));
  EXPECT_EQ(statistics.pack_sizes[1].tokens, 50);
  EXPECT_EQ(statistics.pack_sizes[1].num_media, 2);
  EXPECT_EQ(statistics.pack_sizes[1].tiles, 9);
  EXPECT_THAT(statistics.largest_pack_sample_indices, ElementsAre(1, 2));
}

TEST(PackStatisticsTest, FirstEpochPacksCoverAllSources) {
  const std::vector<SampleSize> sizes(6, {.tokens = 40});
  const OrderSettings settings{.seed = 3, .pack_limits = PackLimits{.max_tokens = 100}};
  const std::vector<MixtureSource> sources{{.name = "a", .samples = {0, 1, 2, 3}}, {.name = "b", .samples = {4, 5}}};
  const SampleOrder order(sources, {{.shares = {1, 1}}}, settings, 6, sizes, {});
  const PackedSamples packs = collect_first_epoch_packs(order);
  EXPECT_THAT(packs.pack_ends, ElementsAre(2, 4, 6));
  const PackStatistics statistics = compute_pack_statistics(packs, order.sample_sizes(), *order.settings().pack_limits);
  EXPECT_EQ(statistics.fill.num_packs, 3);
  EXPECT_DOUBLE_EQ(statistics.fill.token_fill, 0.8);
}

}  // namespace

}  // namespace vlmtrain::data
