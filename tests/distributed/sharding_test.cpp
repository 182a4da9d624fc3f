#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "distributed/trained_ranks.h"

namespace vlmtrain::distributed {
namespace {

using engine::OptimizerSettings;

class ShardedOptimizer : public testing::TestWithParam<TrainConfig> {};

TEST_P(ShardedOptimizer, MatchesUnshardedOptimizer) {
  const TrainResult single_process = train(1, kUnsharded, GetParam(), 3);
  for (const int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const TrainResult unsharded = train(ranks, kUnsharded, GetParam(), 3),
                      sharded = train(ranks, kShardedOptimizer, GetParam(), 3);
    expect_same(sharded, unsharded, GetParam().tolerance);
    expect_same(sharded, single_process, GetParam().tolerance);
  }
}

TEST_P(ShardedOptimizer, ResumeWithDifferentWorldSize) {
  const TrainResult uninterrupted = train(2, kShardedOptimizer, GetParam(), 4),
                    interrupted = train(3, kShardedOptimizer, GetParam(), 2);
  for (const int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    TrainResult resumed = train(ranks, ranks > 1 ? kShardedOptimizer : kUnsharded, GetParam(), 2, interrupted);
    resumed.losses.insert(resumed.losses.begin(), interrupted.losses.begin(), interrupted.losses.end());
    resumed.norms.insert(resumed.norms.begin(), interrupted.norms.begin(), interrupted.norms.end());
    expect_same(resumed, uninterrupted, GetParam().tolerance);
  }
  const TrainResult repeated = train(3, kShardedOptimizer, GetParam(), 2);
  EXPECT_EQ(repeated.losses, interrupted.losses) << "to the bit";
  for (const auto& [name, tensor] : interrupted.state) EXPECT_TRUE(at::equal(tensor, repeated.state.at(name))) << name;
}

OptimizerSettings make_settings(engine::OptimizerStateDtype states) {
  OptimizerSettings settings = kTestSettings;
  settings.state_dtype = states;
  return settings;
}

/// Newton-Schulz is in bf16, where a rounding error of a gradient may change a bit.
TrainConfig make_muon_config() {
  TrainConfig config{.name = "Muon", .tolerance = 1e-3};
  config.settings.kind = engine::OptimizerKind::kMuon;
  return config;
}

INSTANTIATE_TEST_SUITE_P(Of, ShardedOptimizer,
                         testing::Values(TrainConfig{.name = "Fp32"}, make_muon_config(),
                                         // Products of 16 bits differ by the shapes in which they
                                         // are made.
                                         TrainConfig{.name = "Bf16", .dtype = at::kBFloat16, .tolerance = 3e-2},
                                         TrainConfig{.name = "EightBits",
                                                     .settings = make_settings(engine::OptimizerStateDtype::k8Bit),
                                                     .tolerance = 1e-4}),
                         [](const auto& instance) { return instance.param.name; });

/// Two ranks sum in one order only, and without clipping nothing else depends on the layout of the
/// sums.
class ShardedOptimizerBits : public testing::TestWithParam<engine::OptimizerKind> {};

TEST_P(ShardedOptimizerBits, TwoRanksMatchUnshardedBitExactly) {
  TrainConfig config{.name = "unclipped"};
  config.settings.kind = GetParam();
  config.settings.max_grad_norm = 0;
  const TrainResult unsharded = train(2, kUnsharded, config, 3), sharded = train(2, kShardedOptimizer, config, 3);
  EXPECT_EQ(sharded.losses, unsharded.losses);
  for (const auto& [name, weight] : unsharded.weights) EXPECT_TRUE(at::equal(sharded.weights.at(name), weight)) << name;
  const engine::SavedOptimizerState pieces(sharded.state);
  for (const auto& [name, tensor] : unsharded.state) {
    const auto merged = pieces.read_range(name, 0, tensor.numel(), tensor.numel(), tensor.scalar_type());
    ASSERT_TRUE(merged) << name;
    EXPECT_TRUE(at::equal(*merged, tensor.view(-1))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ShardedOptimizerBits,
                         testing::Values(engine::OptimizerKind::kAdamW, engine::OptimizerKind::kMuon),
                         [](const auto& instance) { return engine::get_optimizer_info(instance.param).name; });

TEST(ShardedOptimizerTest, TrafficMatchesWeightSize) {
  run_ranks(2, [](const LaunchInfo& launch) {
    DistributedContext ranks(launch);
    const RankConsensus consensus(ranks.collectives());
    const at::Tensor values = at::arange(8, at::kFloat) * static_cast<double>(launch.rank + 1);
    consensus.reduce_scatter_async(values);
    consensus.wait_for_reductions();
    const at::Tensor sum = at::arange(8, at::kFloat) * 3;
    EXPECT_TRUE(at::equal(values.narrow(0, 4 * launch.rank, 4), sum.narrow(0, 4 * launch.rank, 4)));
    consensus.wait_for_all_gather(consensus.all_gather_async(values));
    EXPECT_TRUE(at::equal(values, sum));
    EXPECT_EQ(ranks.collectives().all_reduce_traffic().num_calls, 0);
    EXPECT_EQ(ranks.collectives().reduce_scatter_traffic().bytes, 32);
    EXPECT_EQ(ranks.collectives().all_gather_traffic().bytes, 32);
    EXPECT_EQ(ranks.collectives().all_gather_traffic().num_calls, 1);
  });
}

}  // namespace
}  // namespace vlmtrain::distributed
