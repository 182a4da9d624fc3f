#include "vlmtrain/data/order/sample_order.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace vlmtrain::data {
namespace {

/// Sample i has 10 + i tokens; of those in `bad` there is no shape.
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
      std::move(sources), {{.from_batch = 0, .shares = std::move(shares)}}, std::move(settings), samples, sizes, {}};
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
  const auto epoch = order.epoch(0, 0);
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
  const SampleOrder order =
      make_order(40, {.seed = 1, .packs = PackLimits{.tokens = 60, .num_media = 9}}, {make_source(0, 40)}, {1});
  const auto steps = simulate_single_rank(order, make_shapes(40), 3, 4);
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& step : steps) {
    EXPECT_GT(step.size(), 3U);
    EXPECT_LE(mean_tokens(step) * static_cast<double>(step.size()), 180);
  }
}

}  // namespace
}  // namespace vlmtrain::data
