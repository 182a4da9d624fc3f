#include "vlmtrain/data/draw_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "data/fake_processor.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAreArray;

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

TEST(LaneWalk, GoesOnFromAnyPlaceAcrossEpochs) {
  const DrawOrder order(5, 3);
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto samples = epoch_order(5, 3, epoch);
    expected.insert(expected.end(), samples.begin(), samples.end());
  }
  Place place;
  for (size_t start = 0; start < expected.size(); ++start) {
    LaneWalk walk(order, 0, place);
    for (size_t i = start; i < expected.size(); ++i) {
      const auto unit = walk.next();
      ASSERT_THAT(unit.samples, ElementsAre(expected[i])) << start << " " << i;
      if (i == start) {
        EXPECT_EQ(unit.begin, place);
        place = unit.behind;
      }
    }
  }
  EXPECT_EQ(place, (Place{3, 0}));
}

TEST(DrawOrder, LanesHaveTheirOwnSamplesInOrdersOfTheirOwn) {
  const DrawOrder order({{.name = "a", .samples = range(0, 50)}, {.name = "b", .samples = range(50, 100)}},
                        {{.from_batch = 0, .shares = {1, 1}}}, {.seed = 3}, 100, {}, {});
  const auto a = order.epoch(0, 0)->samples, b = order.epoch(1, 0)->samples;
  EXPECT_THAT(a, UnorderedElementsAreArray(range(0, 50)));
  EXPECT_THAT(b, UnorderedElementsAreArray(range(50, 100)));
  bool is_other = false;
  for (size_t i = 0; i < a.size(); ++i) is_other |= a[i] + 50 != b[i];
  EXPECT_TRUE(is_other);
  EXPECT_EQ(order.lane_of(49), 0);
  EXPECT_EQ(order.lane_of(50), 1);
}

TEST(DrawOrder, ACurriculumBeginsWithShortSamplesInTheFirstEpochAlone) {
  constexpr int64_t kSamples = 320;
  std::vector<SampleSize> sizes(kSamples);
  RandomStream random(1);
  for (auto& size : sizes) size = {.tokens = static_cast<int64_t>(random.below(5000)), .images = 1, .tiles = 1};
  const DrawOrder order({{.name = "", .samples = range(0, kSamples)}}, {{.from_batch = 0, .shares = {1}}},
                        {.seed = 2, .curriculum = Curriculum::kLength}, kSamples, sizes, {});
  const auto tokens_of = [&](int64_t sample) { return sizes[static_cast<size_t>(sample)].tokens; };
  const auto first = order.epoch(0, 0)->samples;
  EXPECT_THAT(first, UnorderedElementsAreArray(range(0, kSamples)));
  int64_t longest = 0;
  for (size_t stage = 0; stage < 16; ++stage) {
    const auto begin = first.begin() + static_cast<std::ptrdiff_t>(20 * stage);
    const auto [low, high] = std::minmax_element(
        begin, begin + 20, [&](int64_t left, int64_t right) { return tokens_of(left) < tokens_of(right); });
    EXPECT_GE(tokens_of(*low), longest) << stage;
    longest = tokens_of(*high);
  }
  EXPECT_FALSE(std::ranges::is_sorted(first, {}, tokens_of)) << "random within a stage";
  EXPECT_EQ(order.epoch(0, 1)->samples, DrawOrder(kSamples, 2).epoch(0, 1)->samples);
}

TEST(DrawOrder, PacksHoldEachSampleOnceAnEpochAndAreWalkedWhole) {
  constexpr int64_t kSamples = 100;
  std::vector<SampleSize> sizes(kSamples);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = {.tokens = static_cast<int64_t>(i % 7) + 1};
  std::vector<char> is_packed(kSamples, 1);
  is_packed[13] = 0;
  const DrawOrder order({{.name = "", .samples = range(0, kSamples)}}, {{.from_batch = 0, .shares = {1}}},
                        {.seed = 2, .packs = PackLimits{.tokens = 10}}, kSamples, sizes, is_packed);
  EXPECT_EQ(order.samples_drawn(0), 99);
  EXPECT_NE(order.epoch(0, 0)->samples, order.epoch(0, 1)->samples);
  LaneWalk walk(order, 0, {});
  std::set<int64_t> seen;
  const int64_t packs = order.epoch(0, 0)->units();
  EXPECT_LT(packs, 45);
  Place behind;
  for (int64_t pack = 0; pack < packs; ++pack) {
    const auto unit = walk.next();
    EXPECT_EQ(unit.begin, behind);
    behind = unit.behind;
    int64_t tokens = 0;
    for (const int64_t sample : unit.samples) {
      tokens += sizes[static_cast<size_t>(sample)].tokens;
      EXPECT_TRUE(seen.insert(sample).second);
    }
    EXPECT_LE(tokens, 10);
  }
  EXPECT_EQ(seen.size(), 99U);
  EXPECT_FALSE(seen.contains(13));
  EXPECT_EQ(behind, (Place{1, 0}));
}

}  // namespace
}  // namespace vlmtrain::data
