#include "vlmtrain/planner/step_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAreArray;

constexpr int64_t kUnits = 1024;

data::SampleShape sample(int64_t tokens, int64_t pixel_rows = 0, int64_t label_tokens = 1) {
  return {.tokens = tokens, .label_tokens = label_tokens, .pixel_rows = pixel_rows};
}

/// A byte for each token, ten for each row of pixels, and a hundred in any case.
CostTable table(int64_t limit) {
  CostTable table{.base_bytes = 100, .limit_bytes = limit};
  table.bytes_per_1024[CostTable::kTokens] = kUnits;
  table.bytes_per_1024[CostTable::kPixelRows] = 10 * kUnits;
  return table;
}

std::vector<int64_t> ascending(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// What every cut has to keep to.
void expect_sound(const engine::Cut& cut, const std::vector<data::SampleShape>& samples, const CostTable& costs,
                  const engine::CutRule& rule = {}) {
  EXPECT_THAT(cut.order, UnorderedElementsAreArray(ascending(std::ssize(samples))));
  EXPECT_EQ(std::accumulate(cut.sizes.begin(), cut.sizes.end(), int64_t{0}), std::ssize(samples));
  for (int64_t i = 0; i < cut.micro_batches(); ++i) {
    const auto places = cut.micro_batch(i);
    ASSERT_FALSE(places.empty());
    SetSizes sizes;
    for (const int64_t place : places) sizes = sizes.with(sizes_of(samples[static_cast<size_t>(place)]));
    EXPECT_TRUE(sizes.samples == rule.unit || costs.fits(sizes)) << costs.bytes(sizes);
    EXPECT_EQ(sizes.samples % rule.unit, 0);
    for (size_t k = 0; k < places.size(); k += static_cast<size_t>(rule.unit)) {
      EXPECT_EQ(places[k] % rule.unit, 0);
      for (int64_t next = 1; next < rule.unit; ++next) {
        EXPECT_EQ(places[k + static_cast<size_t>(next)], places[k] + next);
      }
    }
    if (rule.groups.empty()) continue;
    for (size_t k = 0; k < places.size(); k += static_cast<size_t>(rule.unit)) {
      EXPECT_EQ(rule.groups[static_cast<size_t>(places[k])], rule.groups[static_cast<size_t>(places[0])]);
    }
  }
}

TEST(StepCutTest, AStepThatFitsIsOneMicroBatchInItsOrder) {
  const auto cut = cut_by_memory(std::vector{sample(300), sample(10), sample(200)}, table(610));
  EXPECT_THAT(cut.order, ElementsAre(0, 1, 2));
  EXPECT_THAT(cut.sizes, ElementsAre(3));
}

TEST(StepCutTest, SamplesOfOneKindAreCutEquallyInTheirOrder) {
  EXPECT_EQ(cut_by_memory(std::vector(7, sample(100)), table(400)), engine::equal_cut(7, 3));
}

TEST(StepCutTest, SmallSamplesGoBesideALargeOne) {
  const std::vector samples{sample(100), sample(800), sample(100), sample(100), sample(800), sample(100)};
  const auto cut = cut_by_memory(samples, table(1100));
  EXPECT_EQ(cut.micro_batches(), 2);
  expect_sound(cut, samples, table(1100));
}

TEST(StepCutTest, PassesAreEven) {
  const std::vector samples{sample(500), sample(400), sample(100), sample(100), sample(100)};
  const auto costs = table(1000);
  const auto cut = cut_by_memory(samples, costs);
  ASSERT_EQ(cut.micro_batches(), 2);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 2; ++i) {
    int64_t sum = 0;
    for (const int64_t place : cut.micro_batch(i)) sum += samples[static_cast<size_t>(place)].tokens;
    tokens.push_back(sum);
  }
  EXPECT_THAT(tokens, ElementsAre(600, 600));
}

TEST(StepCutTest, ASampleThatDoesNotFitStandsAlone) {
  const std::vector samples{sample(50), sample(5000), sample(50)};
  const auto cut = cut_by_memory(samples, table(300));
  EXPECT_THAT(cut.order, ElementsAre(1, 0, 2));
  EXPECT_THAT(cut.sizes, ElementsAre(1, 2));
}

TEST(StepCutTest, NoMoreSamplesThanTheTableAllows) {
  CostTable costs = table(1'000'000);
  costs.most_samples = 4;
  EXPECT_THAT(cut_by_memory(std::vector(10, sample(7)), costs).sizes, ElementsAre(4, 4, 2));
}

/// Where decreasing order misleads first-fit and best-fit: 5 + 3 + 2 and 4 + 4 + 2, not 5 + 4, 4 + 3 + 2 and 2.
TEST(StepCutTest, TheSearchFindsOneLess) {
  const std::vector samples{sample(500), sample(400), sample(400), sample(300), sample(200), sample(200)};
  EXPECT_EQ(cut_by_memory(samples, table(1100)).micro_batches(), 2);
}

TEST(StepCutTest, UnitsStandTogetherAndGroupsApart) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    engine::CutRule rule{.unit = 2};
    std::vector<data::SampleShape> samples;
    for (int64_t i = 0; i < 16; ++i) {
      samples.push_back(sample(10 + static_cast<int64_t>(random() % 300), static_cast<int64_t>(random() % 20)));
      rule.groups.push_back(i % 2 == 0 ? static_cast<int64_t>(random() % 3) : rule.groups.back());
    }
    expect_sound(cut_by_memory(samples, table(900), rule), samples, table(900), rule);
  }
}

/// The fewest micro-batches, by trying all: into each that there is, or a new one.
int64_t optimum(const std::vector<data::SampleShape>& samples, const CostTable& costs, size_t next,
                std::vector<SetSizes>& bins, int64_t best) {
  if (std::ssize(bins) >= best) return best;
  if (next == samples.size()) return std::ssize(bins);
  const SetSizes sizes = sizes_of(samples[next]);
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    if (!costs.fits(bins[bin].with(sizes))) continue;
    const SetSizes before = std::exchange(bins[bin], bins[bin].with(sizes));
    best = optimum(samples, costs, next + 1, bins, best);
    bins[bin] = before;
  }
  bins.push_back(sizes);
  best = optimum(samples, costs, next + 1, bins, best);
  bins.pop_back();
  return best;
}

TEST(StepCutTest, AsFewPassesAsTheOptimumButForAFew) {
  std::mt19937 random(7);
  int64_t passes = 0;
  int64_t fewest = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<data::SampleShape> samples;
    for (int64_t i = 0; i < 10; ++i) {
      const bool is_large = random() % 10 == 0;
      samples.push_back(
          sample(20 + static_cast<int64_t>(random() % 200), is_large ? 60 : static_cast<int64_t>(random() % 20)));
    }
    const auto costs = table(800);
    const auto cut = cut_by_memory(samples, costs);
    expect_sound(cut, samples, costs);
    std::ranges::sort(samples, std::ranges::greater{}, [&](const auto& shape) { return costs.bytes(sizes_of(shape)); });
    std::vector<SetSizes> bins;
    passes += cut.micro_batches();
    fewest += optimum(samples, costs, 0, bins, cut.micro_batches());
  }
  EXPECT_LE(static_cast<double>(passes), 1.01 * static_cast<double>(fewest));
}

TEST(StepCutTest, AThousandSamplesAreCutToo) {
  std::mt19937 random(5);
  std::vector<data::SampleShape> samples;
  for (int64_t i = 0; i < 1024; ++i) samples.push_back(sample(20 + static_cast<int64_t>(random() % 500)));
  expect_sound(cut_by_memory(samples, table(4000)), samples, table(4000));
}

}  // namespace
}  // namespace vlmtrain::planner
