#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/planner/job.h"

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(SampledStepsTest, FewerStepsAreSampledWhereStepsAreLarge) {
  EXPECT_EQ(compute_num_sampled_steps(1), 48);
  EXPECT_EQ(compute_num_sampled_steps(16), 48);
  EXPECT_EQ(compute_num_sampled_steps(512), 8);
  EXPECT_EQ(compute_num_sampled_steps(5000), 4);
}

std::vector<data::SampleShape> make_samples(std::vector<int64_t> tokens) {
  std::vector<data::SampleShape> samples;
  for (const int64_t count : tokens) samples.push_back({.tokens = count});
  return samples;
}

TEST(SampledStepsTest, TheRankWithTheMostTokensIsSelected) {
  Workload workload{.worst_batches = {}, .global_batch_size = 4, .world_size = 2, .sampled_steps = {}};
  workload.sampled_steps = {
      {make_samples({5}), {}}, {make_samples({3, 4}), make_samples({9, 1})}, {make_samples({2}), make_samples({2})}};
  const auto steps = find_heaviest_rank_steps(workload);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0], make_samples({5})) << "the other one had bad samples only";
  EXPECT_EQ(steps[1], make_samples({9, 1}));
  EXPECT_EQ(steps[2], make_samples({2}));

  const auto largest = find_largest_rank_steps(workload);
  ASSERT_EQ(largest.size(), 2U);
  EXPECT_EQ(largest[0].rank, 0);
  EXPECT_EQ(largest[0].step, 1);
  EXPECT_EQ(largest[0].tokens(), 7);
  EXPECT_EQ(largest[1].rank, 1);
  EXPECT_EQ(largest[1].step, 1);
  EXPECT_EQ(largest[1].tokens(), 10);
  workload.sampled_steps.clear();
  EXPECT_TRUE(find_heaviest_rank_steps(workload).empty());
  EXPECT_TRUE(find_largest_rank_steps(workload).empty());
}

TEST(SampledStepsTest, WorstStepsRepeatTheLastSample) {
  const Workload workload{.worst_batches = {{.shapes = {{.tokens = 99}, {.tokens = 98}}, .first_sample_id = "s"}},
                          .global_batch_size = 8,
                          .world_size = 2,
                          .sampled_steps = {}};
  const auto worst = make_worst_steps(workload);
  ASSERT_EQ(worst.size(), 1U);
  ASSERT_EQ(worst[0].size(), 4U);
  EXPECT_EQ(worst[0][1].tokens, 98);
  EXPECT_EQ(worst[0][3].tokens, 98) << "the last stands for the rest";
}

/// Samples of a rank whose global batch counts packs.
int64_t compute_samples_per_rank(int64_t packs, double mean_samples_per_pack, int64_t world_size,
                                 int64_t fixed_micro_batch_size) {
  Workload workload{.worst_batches = {}, .global_batch_size = packs, .world_size = world_size};
  workload.packing =
      PackingParams{.mean_samples_per_pack = mean_samples_per_pack, .fixed_micro_batch_size = fixed_micro_batch_size};
  return workload.samples_per_rank();
}

TEST(SampledStepsTest, SamplesPerRankOfPacksAreRounded) {
  EXPECT_EQ(compute_samples_per_rank(4, 17.8, 1, 0), 64) << "of 71.2";
  EXPECT_EQ(compute_samples_per_rank(4, 17.8, 2, 0), 40);
  EXPECT_EQ(compute_samples_per_rank(4, 17.8, 1, 5), 70);
  EXPECT_EQ(compute_samples_per_rank(4, 17.8, 1, 100), 100) << "one micro-batch, whatever its size";
  EXPECT_EQ(compute_samples_per_rank(1, 1, 1, 0), 1);
  EXPECT_EQ(compute_samples_per_rank(16, 1.1, 1, 0), 20);
  EXPECT_EQ(compute_samples_per_rank(1, 1023, 1, 0), 1024);
}

struct NamedShape {
  std::string id;
  data::SampleShape shape;
};

NamedShape sample(const std::string& id, int64_t tokens, int64_t tiles, int64_t label_tokens) {
  return {id,
          {.tokens = tokens,
           .label_tokens = label_tokens,
           .image_tokens = tiles,
           .num_images = tiles > 0 ? 1 : 0,
           .pixel_rows = tiles,
           .row = {.height = tiles > 0 ? 64 : 0, .width = tiles > 0 ? 64 : 0}}};
}

data::SampleIndex make_outlines(const std::vector<NamedShape>& samples) {
  data::SampleIndex sample_index;
  for (const auto& [id, shape] : samples) {
    sample_index.ids.push_back(id);
    sample_index.shapes.push_back(shape);
  }
  return sample_index;
}

std::vector<int64_t> get_tokens(const SampleBatch& batch) {
  std::vector<int64_t> tokens;
  for (const auto& shape : batch.shapes) tokens.push_back(shape.tokens);
  return tokens;
}

/// Any micro-batch may have the sample with label weights.
TEST(WorstBatchesTest, OneSampleWithLabelWeightsGivesThemToAll) {
  std::vector<NamedShape> samples{sample("long", 100, 0, 2), sample("small", 10, 1, 1), sample("weighted", 5, 0, 1)};
  for (const SampleBatch& batch : find_worst_batches(make_outlines(samples), 2)) {
    for (const auto& shape : batch.shapes) EXPECT_FALSE(shape.has_label_weights);
  }
  samples.back().shape.has_label_weights = true;
  for (const SampleBatch& batch : find_worst_batches(make_outlines(samples), 2)) {
    for (const auto& shape : batch.shapes) EXPECT_TRUE(shape.has_label_weights);
  }
}

TEST(WorstBatchesTest, ContainTheLargestByTokensTilesAndLabels) {
  const auto batches = find_worst_batches(make_outlines({sample("small", 10, 1, 1), sample("long", 100, 0, 2),
                                                         sample("pictures", 50, 9, 3), sample("answers", 60, 2, 40)}),
                                          2);
  ASSERT_THAT(batches, SizeIs(3));
  EXPECT_EQ(batches[0].first_sample_id, "long");
  EXPECT_THAT(get_tokens(batches[0]), ElementsAre(100, 60));
  EXPECT_EQ(batches[1].first_sample_id, "pictures");
  EXPECT_THAT(get_tokens(batches[1]), ElementsAre(50, 60));
  EXPECT_EQ(batches[2].first_sample_id, "answers");
  EXPECT_THAT(get_tokens(batches[2]), ElementsAre(60, 50));
}

TEST(WorstBatchesTest, AreDistinct) {
  const auto batches = find_worst_batches(
      make_outlines({sample("a", 10, 1, 1), sample("b", 20, 2, 2), sample("c", 30, 3, 3), sample("d", 5, 1, 1)}), 3);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].first_sample_id, "c");
  EXPECT_THAT(get_tokens(batches[0]), ElementsAre(30, 20, 10));
}

TEST(WorstBatchesTest, TheSameSamplesInAnotherOrderAreAnotherBatch) {
  const auto batches = find_worst_batches(make_outlines({sample("a", 30, 1, 1), sample("b", 20, 5, 2)}), 2);
  ASSERT_THAT(batches, SizeIs(2)) << "a micro-batch of one takes the first only";
  EXPECT_EQ(batches[0].first_sample_id, "a");
  EXPECT_EQ(batches[1].first_sample_id, "b");
}

TEST(WorstBatchesTest, FewerSamplesThanABatchAreAllOfThem) {
  const auto batches = find_worst_batches(make_outlines({sample("a", 10, 0, 1), sample("b", 20, 0, 2)}), 16);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_THAT(get_tokens(batches[0]), ElementsAre(20, 10));
}

TEST(WorstBatchesTest, OfEqualSamplesTheFirstIsSelected) {
  const auto batches =
      find_worst_batches(make_outlines({sample("b", 10, 1, 1), sample("a", 10, 1, 1), sample("c", 10, 1, 1)}), 1);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].first_sample_id, "b");
}

TEST(WorstBatchesTest, LargerTilesWeighMore) {
  NamedShape few_large = sample("large", 10, 3, 1);
  few_large.shape.row.height = few_large.shape.row.width = 512;
  const auto batches = find_worst_batches(make_outlines({sample("many", 20, 9, 5), few_large}), 1);
  ASSERT_THAT(batches, SizeIs(2));
  EXPECT_EQ(batches[1].first_sample_id, "large");
}

/// No global batch of the data set has more of any of the three sizes.
TEST(WorstBatchesTest, NoOtherBatchHasMore) {
  std::mt19937_64 random(7);
  const auto sample_int = [&](int64_t max_value) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(max_value + 1));
  };
  for (int round = 0; round < 50; ++round) {
    const int64_t batch_size = 1 + sample_int(5);
    std::vector<NamedShape> samples;
    for (int i = 0; i < 12; ++i)
      samples.push_back(sample(std::to_string(i), 1 + sample_int(99), sample_int(8), 1 + sample_int(20)));
    const auto batches = find_worst_batches(make_outlines(samples), batch_size);
    const auto expect_most = [&](int64_t data::SampleShape::*size) {
      std::vector<int64_t> sizes;
      for (const auto& named_shape : samples) sizes.push_back(named_shape.shape.*size);
      std::ranges::sort(sizes, std::greater());
      int64_t max_sum = 0;
      for (int64_t i = 0; i < batch_size; ++i) max_sum += sizes[static_cast<size_t>(i)];
      int64_t found_sum = 0;
      for (const auto& batch : batches) {
        EXPECT_THAT(batch.shapes, SizeIs(batch_size));
        int64_t sum = 0;
        for (const auto& shape : batch.shapes) sum += shape.*size;
        found_sum = std::max(found_sum, sum);
      }
      EXPECT_EQ(found_sum, max_sum);
    };
    expect_most(&data::SampleShape::tokens);
    expect_most(&data::SampleShape::pixel_rows);
    expect_most(&data::SampleShape::label_tokens);
  }
}

TEST(WorstBatchesTest, ADataSetWithoutSamplesIsAMistakeOfTheCaller) {
  EXPECT_THROW(find_worst_batches(data::SampleIndex(), 4), InternalError);
}

TEST(ApportionTest, CountsAreExactWhereSharesAreWholeNumbers) {
  EXPECT_THAT(distribute_proportionally(std::vector{0.5, 0.25, 0.25}, 16), ElementsAre(8, 4, 4));
  EXPECT_THAT(distribute_proportionally(std::vector{0.1, 0.2, 0.7}, 10), ElementsAre(1, 2, 7));
  EXPECT_THAT(distribute_proportionally(std::vector{3.0, 1.0}, 8), ElementsAre(6, 2));
  EXPECT_THAT(distribute_proportionally(std::vector{1.0}, 5), ElementsAre(5));
}

TEST(ApportionTest, LargestRemaindersGetTheRest) {
  EXPECT_THAT(distribute_proportionally(std::vector{0.5, 0.3, 0.2}, 4),
              ElementsAre(2, 1, 1));  // exact shares: 2, 1.2, 0.8
  EXPECT_THAT(distribute_proportionally(std::vector{1.0, 1.0, 1.0}, 4), ElementsAre(2, 1, 1))
      << "equal ones: the first";
  EXPECT_THAT(distribute_proportionally(std::vector{0.98, 0.01, 0.01}, 16), ElementsAre(16, 0, 0));
  EXPECT_THAT(distribute_proportionally(std::vector{0.0, 2.0}, 3), ElementsAre(0, 3));
}

TEST(ApportionTest, CountsAreWithinOneOfTheirShare) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<double> shares(1 + random() % 6);
    for (double& share : shares) share = std::uniform_real_distribution(0.01, 1.0)(random);
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    const auto count = static_cast<int64_t>(random() % 100);
    const auto counts = distribute_proportionally(shares, count);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), count);
    for (size_t index = 0; index < shares.size(); ++index) {
      const double exact_count = shares[index] / sum * static_cast<double>(count);
      EXPECT_LT(std::abs(static_cast<double>(counts[index]) - exact_count), 1);
    }
  }
}

TEST(ApportionTest, EachPrefixHasNearlyTheShares) {
  EXPECT_THAT(interleave_evenly(std::vector<int64_t>{2, 1, 1}), ElementsAre(0, 1, 2, 0));
  const std::vector<int64_t> counts{50, 25, 24, 1};
  const auto sequence = interleave_evenly(counts);
  ASSERT_EQ(sequence.size(), 100U);
  std::vector<double> num_seen(counts.size());
  for (size_t position = 0; position < sequence.size(); ++position) {
    ++num_seen[sequence[position]];
    for (size_t index = 0; index < counts.size(); ++index) {
      const double share = static_cast<double>(counts[index]) * static_cast<double>(position + 1) / 100;
      EXPECT_LT(std::abs(num_seen[index] - share), 1.5) << position;
    }
  }
  for (size_t index = 0; index < counts.size(); ++index) EXPECT_EQ(num_seen[index], static_cast<double>(counts[index]));
}

}  // namespace
}  // namespace vlmtrain::planner
