#include "vlmtrain/data/order/sample_order.h"

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

std::vector<int64_t> make_range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

TEST(SourceIterator, ContinuesFromAnyPositionAcrossEpochs) {
  const SampleOrder order(5, 3);
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto samples = shuffle_epoch(5, 3, epoch);
    expected.insert(expected.end(), samples.begin(), samples.end());
  }
  EpochPosition position;
  for (size_t start = 0; start < expected.size(); ++start) {
    SourceIterator walk(order, 0, position);
    for (size_t i = start; i < expected.size(); ++i) {
      const auto unit = walk.next();
      ASSERT_THAT(unit.samples, ElementsAre(expected[i])) << start << " " << i;
      if (i == start) {
        EXPECT_EQ(unit.begin, position);
        position = unit.end;
      }
    }
  }
  EXPECT_EQ(position, (EpochPosition{3, 0}));
}

TEST(SampleOrder, SourcesHaveIndependentOrders) {
  const SampleOrder order({{.name = "a", .samples = make_range(0, 50)}, {.name = "b", .samples = make_range(50, 100)}},
                          {{.from_batch = 0, .shares = {1, 1}}}, {.seed = 3}, 100, {}, {});
  const auto a = order.epoch(0, 0)->samples, b = order.epoch(1, 0)->samples;
  EXPECT_THAT(a, UnorderedElementsAreArray(make_range(0, 50)));
  EXPECT_THAT(b, UnorderedElementsAreArray(make_range(50, 100)));
  bool differs = false;
  for (size_t i = 0; i < a.size(); ++i) differs |= a[i] + 50 != b[i];
  EXPECT_TRUE(differs);
  EXPECT_EQ(order.find_source(49), 0);
  EXPECT_EQ(order.find_source(50), 1);
}

TEST(SampleOrder, CurriculumStartsTheFirstEpochWithShortSamples) {
  constexpr int64_t kSamples = 320;
  std::vector<SampleSize> sizes(kSamples);
  RandomStream random(1);
  for (auto& size : sizes) size = {.tokens = static_cast<int64_t>(random.uniform(5000)), .num_media = 1, .tiles = 1};
  const SampleOrder order({{.name = "", .samples = make_range(0, kSamples)}}, {{.from_batch = 0, .shares = {1}}},
                          {.seed = 2, .curriculum = Curriculum::kLength}, kSamples, sizes, {});
  const auto get_tokens = [&](int64_t sample) { return sizes[static_cast<size_t>(sample)].tokens; };
  const auto first = order.epoch(0, 0)->samples;
  EXPECT_THAT(first, UnorderedElementsAreArray(make_range(0, kSamples)));
  int64_t previous_longest = 0;
  for (size_t stage = 0; stage < 16; ++stage) {
    const auto begin = first.begin() + static_cast<std::ptrdiff_t>(20 * stage);
    const auto [low, high] =
        std::minmax_element(begin, begin + 20, [&](int64_t a, int64_t b) { return get_tokens(a) < get_tokens(b); });
    EXPECT_GE(get_tokens(*low), previous_longest) << stage;
    previous_longest = get_tokens(*high);
  }
  EXPECT_FALSE(std::ranges::is_sorted(first, {}, get_tokens)) << "random within a stage";
  EXPECT_EQ(order.epoch(0, 1)->samples, SampleOrder(kSamples, 2).epoch(0, 1)->samples);
}

TEST(SampleOrder, PacksHoldEachSampleOncePerEpoch) {
  constexpr int64_t kSamples = 100;
  std::vector<SampleSize> sizes(kSamples);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = {.tokens = static_cast<int64_t>(i % 7) + 1};
  std::vector<char> is_packed(kSamples, 1);
  is_packed[13] = 0;
  const SampleOrder order({{.name = "", .samples = make_range(0, kSamples)}}, {{.from_batch = 0, .shares = {1}}},
                          {.seed = 2, .packs = PackLimits{.tokens = 10}}, kSamples, sizes, is_packed);
  EXPECT_EQ(order.count_epoch_samples(0), 99);
  EXPECT_NE(order.epoch(0, 0)->samples, order.epoch(0, 1)->samples);
  SourceIterator walk(order, 0, {});
  std::set<int64_t> seen_samples;
  const int64_t packs = order.epoch(0, 0)->units();
  EXPECT_LT(packs, 45);
  EpochPosition expected_begin;
  for (int64_t pack = 0; pack < packs; ++pack) {
    const auto unit = walk.next();
    EXPECT_EQ(unit.begin, expected_begin);
    expected_begin = unit.end;
    int64_t tokens = 0;
    for (const int64_t sample : unit.samples) {
      tokens += sizes[static_cast<size_t>(sample)].tokens;
      EXPECT_TRUE(seen_samples.insert(sample).second);
    }
    EXPECT_LE(tokens, 10);
  }
  EXPECT_EQ(seen_samples.size(), 99U);
  EXPECT_FALSE(seen_samples.contains(13));
  EXPECT_EQ(expected_begin, (EpochPosition{1, 0}));
}

}  // namespace
}  // namespace vlmtrain::data
