#include "vlmtrain/data/order/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "data/fake_processor.h"
#include "vlmtrain/base/hash.h"

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
                          {{.first_batch = 0, .shares = {1, 1}}}, {.seed = 3}, 100, {}, {});
  const auto a = order.get_epoch_order(0, 0)->samples, b = order.get_epoch_order(1, 0)->samples;
  EXPECT_THAT(a, UnorderedElementsAreArray(make_range(0, 50)));
  EXPECT_THAT(b, UnorderedElementsAreArray(make_range(50, 100)));
  bool differs = false;
  for (size_t i = 0; i < a.size(); ++i) differs |= a[i] + 50 != b[i];
  EXPECT_TRUE(differs);
  EXPECT_EQ(order.find_sample_source(49), 0);
  EXPECT_EQ(order.find_sample_source(50), 1);
}

TEST(SampleOrder, CurriculumStartsTheFirstEpochWithShortSamples) {
  constexpr int64_t kSamples = 320;
  std::vector<SampleSize> sizes(kSamples);
  RandomStream random(1);
  for (auto& size : sizes) size = {.tokens = static_cast<int64_t>(random.uniform(5000)), .num_media = 1, .tiles = 1};
  const SampleOrder order({{.name = "", .samples = make_range(0, kSamples)}}, {{.first_batch = 0, .shares = {1}}},
                          {.seed = 2, .curriculum = Curriculum::kLength}, kSamples, sizes, {});
  const auto get_tokens = [&](int64_t sample) { return sizes[static_cast<size_t>(sample)].tokens; };
  const auto first = order.get_epoch_order(0, 0)->samples;
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
  EXPECT_EQ(order.get_epoch_order(0, 1)->samples, SampleOrder(kSamples, 2).get_epoch_order(0, 1)->samples);
}

TEST(SampleOrder, PacksHoldEachSampleOncePerEpoch) {
  constexpr int64_t kSamples = 100;
  std::vector<SampleSize> sizes(kSamples);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = {.tokens = static_cast<int64_t>(i % 7) + 1};
  std::vector<char> is_packed(kSamples, 1);
  is_packed[13] = 0;
  const SampleOrder order({{.name = "", .samples = make_range(0, kSamples)}}, {{.first_batch = 0, .shares = {1}}},
                          {.seed = 2, .pack_limits = PackLimits{.max_tokens = 10}}, kSamples, sizes, is_packed);
  EXPECT_EQ(order.count_epoch_samples(0), 99);
  EXPECT_NE(order.get_epoch_order(0, 0)->samples, order.get_epoch_order(0, 1)->samples);
  SourceIterator walk(order, 0, {});
  std::set<int64_t> seen_samples;
  const int64_t packs = order.get_epoch_order(0, 0)->num_units();
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

/// Returns shapes with 10 + i tokens for sample i; those in `bad` are unknown.
SampleShapes make_shapes(int64_t samples, const std::set<int64_t>& bad = {}) {
  SampleShapes shapes(samples);
  for (int64_t i = 0; i < samples; ++i) {
    if (!bad.contains(i)) shapes.set(i, {.tokens = 10 + i});
  }
  return shapes;
}

SampleOrder make_order(int64_t samples, OrderSettings settings, std::vector<MixtureSource> sources,
                       std::vector<double> shares) {
  std::vector<SampleSize> sizes;
  for (int64_t i = 0; i < samples; ++i) sizes.push_back({.tokens = 10 + i});
  return {
      std::move(sources), {{.first_batch = 0, .shares = std::move(shares)}}, std::move(settings), samples, sizes, {}};
}

MixtureSource make_source(int64_t first, int64_t end) {
  MixtureSource source{.name = "source", .samples = std::vector<int64_t>(static_cast<size_t>(end - first))};
  std::iota(source.samples.begin(), source.samples.end(), first);
  return source;
}

std::vector<std::vector<SampleShape>> simulate_single_rank(const SampleOrder& order, const SampleShapes& shapes,
                                                           int64_t units, int64_t count) {
  std::vector<std::vector<SampleShape>> steps;
  for (auto& step_shapes : simulate_steps(order, shapes, units, count, /*ranks=*/1))
    steps.push_back(std::move(step_shapes.front()));
  return steps;
}

double mean_tokens(const std::vector<SampleShape>& step) {
  double tokens = 0;
  for (const auto& shape : step) tokens += static_cast<double>(shape.tokens);
  return tokens / static_cast<double>(step.size());
}

TEST(SimulateStepsTest, StepsFollowTheOrder) {
  const SampleOrder order(/*samples=*/12, /*seed=*/3);
  const auto steps = simulate_single_rank(order, make_shapes(12), /*units=*/3, /*count=*/4);
  ASSERT_EQ(steps.size(), 4U);
  const auto epoch = order.get_epoch_order(0, 0);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(steps[i / 3][i % 3].tokens, 10 + epoch->samples[i]) << i;
}

TEST(SimulateStepsTest, UnitsAlternateBetweenRanks) {
  const SampleOrder order(/*samples=*/24, /*seed=*/5);
  const auto single_rank = simulate_single_rank(order, make_shapes(24), /*units=*/6, /*count=*/4);
  const auto steps_by_rank = simulate_steps(order, make_shapes(24), 6, 4, /*ranks=*/3);
  ASSERT_EQ(steps_by_rank.size(), single_rank.size());
  for (size_t step = 0; step < single_rank.size(); ++step) {
    ASSERT_EQ(steps_by_rank[step].size(), 3U);
    for (size_t unit = 0; unit < 6; ++unit) {
      ASSERT_EQ(steps_by_rank[step][unit % 3].size(), 2U);
      EXPECT_EQ(steps_by_rank[step][unit % 3][unit / 3].tokens, single_rank[step][unit].tokens) << step << ", " << unit;
    }
  }
}

TEST(SimulateStepsTest, StepsContinueInTheNextEpoch) {
  const auto steps = simulate_single_rank(SampleOrder(3, 1), make_shapes(3), 2, 6);
  ASSERT_EQ(steps.size(), 6U);
  for (const auto& step : steps) EXPECT_EQ(step.size(), 2U);
}

TEST(SimulateStepsTest, UnknownShapesAreSkipped) {
  const std::set<int64_t> bad{0, 1, 2, 3, 4, 7};
  const auto steps = simulate_single_rank(SampleOrder(8, 1), make_shapes(8, bad), 2, 5);
  ASSERT_EQ(steps.size(), 5U);
  for (const auto& step : steps) {
    ASSERT_EQ(step.size(), 2U);
    EXPECT_NE(step[0].tokens, step[1].tokens) << "both of the usable ones are drawn in each epoch";
  }
}

TEST(SimulateStepsTest, StepsCoverTheWholeCurriculum) {
  const SampleOrder order =
      make_order(1600, {.seed = 1, .curriculum = Curriculum::kLength}, {make_source(0, 1600)}, {1});
  const auto steps = simulate_single_rank(order, make_shapes(1600), 4, 16);
  ASSERT_EQ(steps.size(), 16U);
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_GT(mean_tokens(steps[i]), mean_tokens(steps[i - 1])) << i;
}

TEST(SimulateStepsTest, StepsFollowMixtureShares) {
  const SampleOrder order = make_order(1000, {.seed = 1}, {make_source(0, 900), make_source(900, 1000)}, {1, 3});
  for (const auto& step : simulate_single_rank(order, make_shapes(1000), 8, 20)) {
    EXPECT_EQ(std::ranges::count_if(step, [](const auto& shape) { return shape.tokens >= 910; }), 6);
  }
}

TEST(SimulateStepsTest, SourceWithoutKnownShapesGivesNoSamples) {
  std::set<int64_t> unknown;
  for (int64_t i = 5; i < 10; ++i) unknown.insert(i);
  const SampleOrder order = make_order(10, {.seed = 1}, {make_source(0, 5), make_source(5, 10)}, {1, 1});
  for (const auto& step : simulate_single_rank(order, make_shapes(10, unknown), 2, 3)) EXPECT_EQ(step.size(), 1U);
}

TEST(SimulateStepsTest, UnitsMayBePacks) {
  const SampleOrder order = make_order(40, {.seed = 1, .pack_limits = PackLimits{.max_tokens = 60, .max_media = 9}},
                                       {make_source(0, 40)}, {1});
  const auto steps = simulate_single_rank(order, make_shapes(40), 3, 4);
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& step : steps) {
    EXPECT_GT(step.size(), 3U);
    EXPECT_LE(mean_tokens(step) * static_cast<double>(step.size()), 180);
  }
}

}  // namespace

}  // namespace vlmtrain::data
