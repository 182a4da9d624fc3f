#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAreArray;

constexpr int64_t kCoefficientScale = 1024;

data::SampleShape sample(int64_t tokens, int64_t pixel_rows = 0, int64_t label_tokens = 1) {
  return {.tokens = tokens, .label_tokens = label_tokens, .pixel_rows = pixel_rows};
}

/// One byte per token, ten per pixel row, plus a hundred.
MemoryCostTable make_table(int64_t limit) {
  MemoryCostTable table{.base_bytes = 100, .limit_bytes = limit};
  table.bytes_per_1024_units[MemoryCostTable::kTokens] = kCoefficientScale;
  table.bytes_per_1024_units[MemoryCostTable::kPixelRows] = 10 * kCoefficientScale;
  return table;
}

std::vector<int64_t> make_range(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// Invariants of every split.
void expect_valid(const engine::MicroBatchSplit& split, const std::vector<data::SampleShape>& samples,
                  const MemoryCostTable& table, const engine::SplitConstraint& rule = {}) {
  EXPECT_THAT(split.order, UnorderedElementsAreArray(make_range(std::ssize(samples))));
  EXPECT_EQ(std::accumulate(split.sizes.begin(), split.sizes.end(), int64_t{0}), std::ssize(samples));
  for (int64_t i = 0; i < split.num_micro_batches(); ++i) {
    const auto indices = split.get_sample_indices(i);
    ASSERT_FALSE(indices.empty());
    MicroBatchSizes sizes;
    for (const int64_t index : indices)
      sizes = sizes.merge(compute_micro_batch_sizes(samples[static_cast<size_t>(index)]));
    EXPECT_TRUE(sizes.samples == rule.unit_size || table.fits(sizes)) << table.bytes(sizes);
    EXPECT_EQ(sizes.samples % rule.unit_size, 0);
    for (size_t k = 0; k < indices.size(); k += static_cast<size_t>(rule.unit_size)) {
      EXPECT_EQ(indices[k] % rule.unit_size, 0);
      for (int64_t next = 1; next < rule.unit_size; ++next) {
        EXPECT_EQ(indices[k + static_cast<size_t>(next)], indices[k] + next);
      }
    }
    if (rule.groups.empty()) continue;
    for (size_t k = 0; k < indices.size(); k += static_cast<size_t>(rule.unit_size)) {
      EXPECT_EQ(rule.groups[static_cast<size_t>(indices[k])], rule.groups[static_cast<size_t>(indices[0])]);
    }
  }
}

TEST(StepSplitTest, AStepThatFitsIsOneMicroBatchInOrder) {
  const auto split = split_by_memory(std::vector{sample(300), sample(10), sample(200)}, make_table(610));
  EXPECT_THAT(split.order, ElementsAre(0, 1, 2));
  EXPECT_THAT(split.sizes, ElementsAre(3));
}

TEST(StepSplitTest, EqualSamplesAreSplitEquallyInOrder) {
  EXPECT_EQ(split_by_memory(std::vector(7, sample(100)), make_table(400)), engine::split_evenly(7, 3));
}

TEST(StepSplitTest, SmallSamplesJoinALargeOne) {
  const std::vector samples{sample(100), sample(800), sample(100), sample(100), sample(800), sample(100)};
  const auto split = split_by_memory(samples, make_table(1100));
  EXPECT_EQ(split.num_micro_batches(), 2);
  expect_valid(split, samples, make_table(1100));
}

TEST(StepSplitTest, MicroBatchesAreBalanced) {
  const std::vector samples{sample(500), sample(400), sample(100), sample(100), sample(100)};
  const auto table = make_table(1000);
  const auto split = split_by_memory(samples, table);
  ASSERT_EQ(split.num_micro_batches(), 2);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 2; ++i) {
    int64_t sum = 0;
    for (const int64_t index : split.get_sample_indices(i)) sum += samples[static_cast<size_t>(index)].tokens;
    tokens.push_back(sum);
  }
  EXPECT_THAT(tokens, ElementsAre(600, 600));
}

TEST(StepSplitTest, ASampleThatDoesNotFitIsItsOwnMicroBatch) {
  const std::vector samples{sample(50), sample(5000), sample(50)};
  const auto split = split_by_memory(samples, make_table(300));
  EXPECT_THAT(split.order, ElementsAre(1, 0, 2));
  EXPECT_THAT(split.sizes, ElementsAre(1, 2));
}

TEST(StepSplitTest, RespectsTheMaximumNumberOfSamples) {
  MemoryCostTable table = make_table(1'000'000);
  table.max_samples = 4;
  EXPECT_THAT(split_by_memory(std::vector(10, sample(7)), table).sizes, ElementsAre(4, 4, 2));
}

/// Cases in which decreasing order misleads first-fit and best-fit: 5 + 3 + 2 and 4 + 4 + 2, not 5
/// + 4, 4 + 3 + 2 and 2.
TEST(StepSplitTest, TheSearchFindsOneMicroBatchLess) {
  const std::vector samples{sample(500), sample(400), sample(400), sample(300), sample(200), sample(200)};
  EXPECT_EQ(split_by_memory(samples, make_table(1100)).num_micro_batches(), 2);
}

TEST(StepSplitTest, KeepsUnitsTogetherAndGroupsApart) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    engine::SplitConstraint rule{.unit_size = 2};
    std::vector<data::SampleShape> samples;
    for (int64_t i = 0; i < 16; ++i) {
      samples.push_back(sample(10 + static_cast<int64_t>(random() % 300), static_cast<int64_t>(random() % 20)));
      rule.groups.push_back(i % 2 == 0 ? static_cast<int64_t>(random() % 3) : rule.groups.back());
    }
    expect_valid(split_by_memory(samples, make_table(900), rule), samples, make_table(900), rule);
  }
}

/// Returns the fewest micro-batches by exhaustive search: each sample in every existing
/// micro-batch, or in a new one.
int64_t find_optimum(const std::vector<data::SampleShape>& samples, const MemoryCostTable& table, size_t next,
                     std::vector<MicroBatchSizes>& bins, int64_t best) {
  if (std::ssize(bins) >= best) return best;
  if (next == samples.size()) return std::ssize(bins);
  const MicroBatchSizes sizes = compute_micro_batch_sizes(samples[next]);
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    if (!table.fits(bins[bin].merge(sizes))) continue;
    const MicroBatchSizes previous = std::exchange(bins[bin], bins[bin].merge(sizes));
    best = find_optimum(samples, table, next + 1, bins, best);
    bins[bin] = previous;
  }
  bins.push_back(sizes);
  best = find_optimum(samples, table, next + 1, bins, best);
  bins.pop_back();
  return best;
}

TEST(StepSplitTest, IsNearTheOptimum) {
  std::mt19937 random(7);
  int64_t num_micro_batches = 0;
  int64_t min_micro_batches = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<data::SampleShape> samples;
    for (int64_t i = 0; i < 10; ++i) {
      const bool is_large = random() % 10 == 0;
      samples.push_back(
          sample(20 + static_cast<int64_t>(random() % 200), is_large ? 60 : static_cast<int64_t>(random() % 20)));
    }
    const auto table = make_table(800);
    const auto split = split_by_memory(samples, table);
    expect_valid(split, samples, table);
    std::ranges::sort(samples, std::ranges::greater{},
                      [&](const auto& shape) { return table.bytes(compute_micro_batch_sizes(shape)); });
    std::vector<MicroBatchSizes> bins;
    num_micro_batches += split.num_micro_batches();
    min_micro_batches += find_optimum(samples, table, 0, bins, split.num_micro_batches());
  }
  EXPECT_LE(static_cast<double>(num_micro_batches), 1.01 * static_cast<double>(min_micro_batches));
}

TEST(StepSplitTest, SplitsAThousandSamples) {
  std::mt19937 random(5);
  std::vector<data::SampleShape> samples;
  for (int64_t i = 0; i < 1024; ++i) samples.push_back(sample(20 + static_cast<int64_t>(random() % 500)));
  expect_valid(split_by_memory(samples, make_table(4000)), samples, make_table(4000));
}

}  // namespace
}  // namespace vlmtrain::planner
