#include "vlmtrain/data/order/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

TEST(PackStatisticsTest, ReportsTheLimitingFactor) {
  const std::vector<SampleSize> sizes{{.tokens = 90, .num_media = 1, .tiles = 2},
                                      {.tokens = 20, .num_media = 1, .tiles = 7},
                                      {.tokens = 30, .num_media = 1, .tiles = 2},
                                      {.tokens = 20, .num_media = 0, .tiles = 0},
                                      {.tokens = 50, .num_media = 1, .tiles = 9}};
  const PackLimits limits{.tokens = 100, .num_media = 2, .tiles = 9};
  // Full of tokens; of images; of tiles; and one that could take more of everything.
  const Packs packs{.samples = {0, 1, 2, 4, 3}, .ends = {1, 3, 4, 5}};
  const PackStatistics statistics = compute_pack_statistics(packs, sizes, limits);
  EXPECT_EQ(statistics.fill.packs, 4);
  EXPECT_EQ(statistics.limited_by_images, 1);
  EXPECT_EQ(statistics.limited_by_tiles, 1);
  EXPECT_EQ(statistics.limited_by_tokens(), 2);
  EXPECT_EQ(statistics.limited_by_images + statistics.limited_by_tiles, statistics.fill.limited_by_media)
      << "as the log of a run says";
  EXPECT_THAT(statistics.samples, ElementsAre(1, 2, 1, 1));
  EXPECT_EQ(statistics.packs[1].tokens, 50);
  EXPECT_EQ(statistics.packs[1].num_media, 2);
  EXPECT_EQ(statistics.packs[1].tiles, 9);
  EXPECT_THAT(statistics.largest_tile_pack, ElementsAre(1, 2));
}

TEST(PackStatisticsTest, FirstEpochPacksCoverAllSources) {
  const std::vector<SampleSize> sizes(6, {.tokens = 40});
  const OrderSettings settings{.seed = 3, .packs = PackLimits{.tokens = 100}};
  const std::vector<MixtureSource> sources{{.name = "a", .samples = {0, 1, 2, 3}}, {.name = "b", .samples = {4, 5}}};
  const SampleOrder order(sources, {{.shares = {1, 1}}}, settings, 6, sizes, {});
  const Packs packs = collect_first_epoch_packs(order);
  EXPECT_THAT(packs.ends, ElementsAre(2, 4, 6));
  const PackStatistics statistics = compute_pack_statistics(packs, order.sizes(), *order.settings().packs);
  EXPECT_EQ(statistics.fill.packs, 3);
  EXPECT_DOUBLE_EQ(statistics.fill.tokens, 0.8);
}

}  // namespace
}  // namespace vlmtrain::data
