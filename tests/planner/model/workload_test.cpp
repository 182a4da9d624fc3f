#include <gtest/gtest.h>

#include "vlmtrain/planner/workload.h"

namespace vlmtrain::planner {
namespace {

TEST(SampledStepsTest, FewerStepsAreSampledWhereStepsAreLarge) {
  EXPECT_EQ(num_steps_to_sample(1), 48);
  EXPECT_EQ(num_steps_to_sample(16), 48);
  EXPECT_EQ(num_steps_to_sample(512), 8);
  EXPECT_EQ(num_steps_to_sample(5000), 4);
}

std::vector<data::SampleShape> make_samples(std::vector<int64_t> tokens) {
  std::vector<data::SampleShape> samples;
  for (const int64_t count : tokens) samples.push_back({.tokens = count});
  return samples;
}

TEST(SampledStepsTest, TheRankWithTheMostTokensIsSelected) {
  Workload workload{.candidates = {}, .global_batch_size = 4, .world_size = 2, .sampled_steps = {}};
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
  const Workload workload{.candidates = {{.shapes = {{.tokens = 99}, {.tokens = 98}}, .first_sample_id = "s"}},
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
int64_t compute_samples_per_rank(int64_t packs, double samples_per_pack, int64_t world_size,
                                 int64_t fixed_micro_batch_size) {
  Workload workload{.candidates = {}, .global_batch_size = packs, .world_size = world_size};
  workload.packed =
      PackedSamples{.samples_per_pack = samples_per_pack, .fixed_micro_batch_size = fixed_micro_batch_size};
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

}  // namespace
}  // namespace vlmtrain::planner
