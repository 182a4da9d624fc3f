#include "vlmtrain/data/pack_census.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

TEST(PackCensusTest, SaysWhichLimitBinds) {
  const std::vector<SampleSize> sizes{{.tokens = 90, .images = 1, .tiles = 2},
                                      {.tokens = 20, .images = 1, .tiles = 7},
                                      {.tokens = 30, .images = 1, .tiles = 2},
                                      {.tokens = 20, .images = 0, .tiles = 0},
                                      {.tokens = 50, .images = 1, .tiles = 9}};
  const PackLimits limits{.tokens = 100, .images = 2, .tiles = 9};
  // Full of tokens; of images; of tiles; and one that could take more of everything.
  const Packs packs{.samples = {0, 1, 2, 4, 3}, .ends = {1, 3, 4, 5}};
  const PackCensus census = census_of(packs, sizes, limits);
  EXPECT_EQ(census.fill.packs, 4);
  EXPECT_EQ(census.bound_by_images, 1);
  EXPECT_EQ(census.bound_by_tiles, 1);
  EXPECT_EQ(census.bound_by_tokens(), 2);
  EXPECT_EQ(census.bound_by_images + census.bound_by_tiles, census.fill.bound_by_media) << "as the log of a run says";
  EXPECT_THAT(census.samples, ElementsAre(1, 2, 1, 1));
  EXPECT_EQ(census.packs[1].tokens, 50);
  EXPECT_EQ(census.packs[1].images, 2);
  EXPECT_EQ(census.packs[1].tiles, 9);
  EXPECT_THAT(census.of_most_tiles, ElementsAre(1, 2));
}

TEST(PackCensusTest, FirstPacksAreThoseOfAllLanes) {
  const std::vector<SampleSize> sizes(6, {.tokens = 40});
  const OrderSettings settings{.seed = 3, .packs = PackLimits{.tokens = 100}};
  const std::vector<Lane> lanes{{.name = "a", .samples = {0, 1, 2, 3}}, {.name = "b", .samples = {4, 5}}};
  const DrawOrder order(lanes, {{.shares = {1, 1}}}, settings, 6, sizes, {});
  const Packs packs = first_packs(order);
  EXPECT_THAT(packs.ends, ElementsAre(2, 4, 6));
  const PackCensus census = census_of(packs, order.sizes(), *order.settings().packs);
  EXPECT_EQ(census.fill.packs, 3);
  EXPECT_DOUBLE_EQ(census.fill.tokens, 0.8);
}

}  // namespace
}  // namespace vlmtrain::data
