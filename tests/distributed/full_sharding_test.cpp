#include <ATen/TensorOperators.h>

#include "distributed/trained_ranks.h"

namespace vlmtrain::distributed {
namespace {

ShardingConfig make_hybrid_sharding(int64_t ranks) {
  return {.sharding = engine::ShardingStrategy::kHybrid, .group = ranks};
}

class FullShardingEquivalence : public testing::TestWithParam<TrainConfig> {};

TEST_P(FullShardingEquivalence, MatchesSingleProcess) {
  const TrainResult single_process = train(1, kUnsharded, GetParam(), 2);
  for (const int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    expect_same(train(ranks, kFullySharded, GetParam(), 2), single_process, GetParam().tolerance);
  }
  SCOPED_TRACE("two groups of two");
  expect_same(train(4, make_hybrid_sharding(2), GetParam(), 2), single_process, GetParam().tolerance);
}

TEST_P(FullShardingEquivalence, ResumesWithDifferentWorldSize) {
  const TrainResult uninterrupted = train(2, kFullySharded, GetParam(), 2),
                    interrupted = train(3, kFullySharded, GetParam(), 1);
  for (const int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    TrainResult resumed = train(ranks, ranks > 1 ? kFullySharded : kUnsharded, GetParam(), 1, interrupted);
    resumed.losses.insert(resumed.losses.begin(), interrupted.losses.begin(), interrupted.losses.end());
    resumed.norms.insert(resumed.norms.begin(), interrupted.norms.begin(), interrupted.norms.end());
    expect_same(resumed, uninterrupted, GetParam().tolerance);
  }
  const TrainResult repeated = train(3, kFullySharded, GetParam(), 1);
  EXPECT_EQ(repeated.losses, interrupted.losses) << "to the bit";
  for (const auto& [name, tensor] : interrupted.state) EXPECT_TRUE(at::equal(tensor, repeated.state.at(name))) << name;
}

/// The rank that runs out of memory finishes its passes along with the others.
TEST(FullShardingTest, StepIsRetriedWhenOneRankRunsOutOfMemory) {
  for (TrainConfig config :
       {TrainConfig{.name = "whole"}, TrainConfig{.name = "recomputed", .recompute = {.vision = 1, .language = 2}},
        TrainConfig{.name = "in passes", .vision_tiles_per_pass = 1}}) {
    SCOPED_TRACE(config.name);
    const TrainResult uninterrupted = train(3, kFullySharded, config, 4);
    config.runs_out_of_memory = true;
    const TrainResult retried = train(3, kFullySharded, config, 4);
    EXPECT_EQ(retried.retried_steps, 3);
    EXPECT_EQ(retried.losses, uninterrupted.losses);
    EXPECT_EQ(retried.norms, uninterrupted.norms);
    for (const auto& [name, weight] : uninterrupted.weights) {
      EXPECT_TRUE(at::equal(retried.weights.at(name), weight)) << name;
    }
  }
}

/// A fraction (n − 1) / n of a sharded block's weights is sent twice per pass, and of its gradients
/// once.
TEST(FullShardingTest, TrafficIsTwoAllGathersAndOneReduceScatter) {
  constexpr int64_t kSteps = 2;
  const TrainResult sharded = train(2, kFullySharded, TrainConfig{.name = "whole"}, kSteps);
  int64_t block_bytes = 0, other_bytes = 0;
  for (const auto& [name, weight] : sharded.weights) {
    (name.find(".layers.") != std::string::npos ? block_bytes : other_bytes) += static_cast<int64_t>(weight.nbytes());
  }
  constexpr int64_t kPasses = kSteps * 4;  // micro-batches of one sample
  const auto expect_close = [](int64_t bytes, int64_t expected) {
    EXPECT_GE(bytes, expected);
    EXPECT_LT(static_cast<double>(bytes), 1.1 * static_cast<double>(expected)) << "what aligns tensors";
  };
  expect_close(sharded.reduce_scatter_traffic.bytes, kPasses * block_bytes + kSteps * other_bytes);
  EXPECT_LT(sharded.all_gather_traffic.bytes, 2 * kPasses * block_bytes * 11 / 10 + kSteps * other_bytes * 11 / 10);
  EXPECT_GE(sharded.all_gather_traffic.bytes, kPasses * block_bytes) << "passes without images skip the tower";
}

INSTANTIATE_TEST_SUITE_P(Of, FullShardingEquivalence, testing::ValuesIn(list_block_configs()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::distributed
