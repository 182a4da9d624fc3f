#include "vlmtrain/data/drawn_steps.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace vlmtrain::data {
namespace {

/// Sample i has 10 + i tokens; of those in `bad` there is no shape.
SampleShapes shapes_of(int64_t samples, const std::set<int64_t>& bad = {}) {
  SampleShapes shapes(samples);
  for (int64_t i = 0; i < samples; ++i) {
    if (!bad.contains(i)) shapes.set(i, {.tokens = 10 + i});
  }
  return shapes;
}

DrawOrder order_in(int64_t samples, OrderSettings settings, std::vector<Lane> lanes, std::vector<double> shares) {
  std::vector<SampleSize> sizes;
  for (int64_t i = 0; i < samples; ++i) sizes.push_back({.tokens = 10 + i});
  return {std::move(lanes), {{.from_batch = 0, .shares = std::move(shares)}}, std::move(settings), samples, sizes, {}};
}

Lane lane_of(int64_t first, int64_t end) {
  Lane lane{.name = "lane", .samples = std::vector<int64_t>(static_cast<size_t>(end - first))};
  std::iota(lane.samples.begin(), lane.samples.end(), first);
  return lane;
}

std::vector<std::vector<SampleShape>> drawn_steps(const DrawOrder& order, const SampleShapes& shapes, int64_t units,
                                                  int64_t count) {
  std::vector<std::vector<SampleShape>> steps;
  for (auto& parts : drawn_parts(order, shapes, units, count, /*ranks=*/1)) steps.push_back(std::move(parts.front()));
  return steps;
}

double mean_tokens(const std::vector<SampleShape>& step) {
  double tokens = 0;
  for (const auto& shape : step) tokens += static_cast<double>(shape.tokens);
  return tokens / static_cast<double>(step.size());
}

TEST(DrawnStepsTest, TheyAreThoseOfTheOrder) {
  const DrawOrder order(/*samples=*/12, /*seed=*/3);
  const auto steps = drawn_steps(order, shapes_of(12), /*units=*/3, /*count=*/4);
  ASSERT_EQ(steps.size(), 4U);
  const auto epoch = order.epoch(0, 0);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(steps[i / 3][i % 3].tokens, 10 + epoch->samples[i]) << i;
}

TEST(DrawnStepsTest, UnitsGoRoundTheRanks) {
  const DrawOrder order(/*samples=*/24, /*seed=*/5);
  const auto whole = drawn_steps(order, shapes_of(24), /*units=*/6, /*count=*/4);
  const auto parts = drawn_parts(order, shapes_of(24), 6, 4, /*ranks=*/3);
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t step = 0; step < whole.size(); ++step) {
    ASSERT_EQ(parts[step].size(), 3U);
    for (size_t unit = 0; unit < 6; ++unit) {
      ASSERT_EQ(parts[step][unit % 3].size(), 2U);
      EXPECT_EQ(parts[step][unit % 3][unit / 3].tokens, whole[step][unit].tokens) << step << ", " << unit;
    }
  }
}

TEST(DrawnStepsTest, TheyGoOnBehindAnEpoch) {
  const auto steps = drawn_steps(DrawOrder(3, 1), shapes_of(3), 2, 6);
  ASSERT_EQ(steps.size(), 6U);
  for (const auto& step : steps) EXPECT_EQ(step.size(), 2U);
}

TEST(DrawnStepsTest, BadSamplesArePassedOver) {
  const std::set<int64_t> bad{0, 1, 2, 3, 4, 7};
  const auto steps = drawn_steps(DrawOrder(8, 1), shapes_of(8, bad), 2, 5);
  ASSERT_EQ(steps.size(), 5U);
  for (const auto& step : steps) {
    ASSERT_EQ(step.size(), 2U);
    EXPECT_NE(step[0].tokens, step[1].tokens) << "both of the usable ones are drawn in each epoch";
  }
}

TEST(DrawnStepsTest, ACurriculumIsSeenAsAWhole) {
  const DrawOrder order = order_in(1600, {.seed = 1, .curriculum = Curriculum::kLength}, {lane_of(0, 1600)}, {1});
  const auto steps = drawn_steps(order, shapes_of(1600), 4, 16);
  ASSERT_EQ(steps.size(), 16U);
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_GT(mean_tokens(steps[i]), mean_tokens(steps[i - 1])) << i;
}

TEST(DrawnStepsTest, SharesArePartOfIt) {
  const DrawOrder order = order_in(1000, {.seed = 1}, {lane_of(0, 900), lane_of(900, 1000)}, {1, 3});
  for (const auto& step : drawn_steps(order, shapes_of(1000), 8, 20)) {
    EXPECT_EQ(std::ranges::count_if(step, [](const auto& shape) { return shape.tokens >= 910; }), 6);
  }
}

TEST(DrawnStepsTest, OfALaneThatWasNotLookedAtThereIsNothing) {
  std::set<int64_t> unknown;
  for (int64_t i = 5; i < 10; ++i) unknown.insert(i);
  const DrawOrder order = order_in(10, {.seed = 1}, {lane_of(0, 5), lane_of(5, 10)}, {1, 1});
  for (const auto& step : drawn_steps(order, shapes_of(10, unknown), 2, 3)) EXPECT_EQ(step.size(), 1U);
}

TEST(DrawnStepsTest, AUnitMayBeAPack) {
  const DrawOrder order =
      order_in(40, {.seed = 1, .packs = PackLimits{.tokens = 60, .images = 9}}, {lane_of(0, 40)}, {1});
  const auto steps = drawn_steps(order, shapes_of(40), 3, 4);
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& step : steps) {
    EXPECT_GT(step.size(), 3U);
    EXPECT_LE(mean_tokens(step) * static_cast<double>(step.size()), 180);
  }
}

}  // namespace
}  // namespace vlmtrain::data
