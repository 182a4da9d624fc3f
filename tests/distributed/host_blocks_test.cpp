// Weights, gradients and inputs of blocks in host memory. On the CPU it is ordinary memory, but blocks take the
// same paths: they exist in two slots only while they run.

#include <cmath>

#include "distributed/trained_ranks.h"

namespace vlmtrain::distributed {
namespace {

constexpr int64_t kSteps = 2, kNumSkippedSteps = 12;
constexpr models::RecomputeBlockCounts kAllBlocks{.vision = 1000, .language = 1000};

void expect_equal(const TrainResult& actual, const TrainResult& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) EXPECT_TRUE(at::equal(actual.weights.at(name), weight)) << name;
  ASSERT_EQ(actual.state.size(), expected.state.size());
  for (const auto& [name, tensor] : expected.state) EXPECT_TRUE(at::equal(actual.state.at(name), tensor)) << name;
}

class HostBlocks : public testing::TestWithParam<TrainConfig> {};

TEST_P(HostBlocks, EqualResidentBlocksToTheBit) {
  const TrainResult expected = train(1, kUnsharded, GetParam(), kSteps);
  expect_equal(train(1, kHostWeights, GetParam(), kSteps), expected);
  expect_equal(train(1, kHostGradients, GetParam(), kSteps), expected);
  TrainConfig recomputed = GetParam();
  recomputed.recompute = kAllBlocks;
  expect_equal(train(1, kEverythingOnHost, recomputed, kSteps), expected);
}

TEST_P(HostBlocks, OfShardedRanksEqualResidentShardsToTheBit) {
  const TrainResult expected = train(2, kFullySharded, GetParam(), kSteps);
  TrainConfig recomputed = GetParam();
  recomputed.recompute = kAllBlocks;
  expect_equal(train(2, kShardedOnHost, recomputed, kSteps), expected);
}

INSTANTIATE_TEST_SUITE_P(Of, HostBlocks, testing::ValuesIn(list_block_configs()),
                         [](const auto& instance) { return instance.param.name; });

TEST(HostBlocksTest, OfSeveralRanksEqualResidentBlocksToTheBit) {
  for (const TrainConfig& config :
       {TrainConfig{.name = "full"}, TrainConfig{.name = "lora", .lora = nn::LoraSettings{.rank = 4}}}) {
    SCOPED_TRACE(config.name);
    expect_equal(train(2, kHostWeights, config, kSteps), train(2, kUnsharded, config, kSteps));
    expect_equal(train(2, kShardedHostWeights, config, kSteps), train(2, kFullySharded, config, kSteps));
  }
}

TEST(HostBlocksTest, OfEveryTypeOfStateEqualResidentBlocksToTheBit) {
  using engine::MasterWeights;
  using engine::OptimizerStateDtype;
  for (const auto states : {OptimizerStateDtype::kFp32, OptimizerStateDtype::kBf16, OptimizerStateDtype::k8Bit}) {
    for (const auto masters : {MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kStochastic}) {
      const TrainConfig config{.name = engine::to_string(states) + ", " + engine::to_string(masters),
                               .settings = {.state_dtype = states, .master_weights = masters},
                               .dtype = at::kBFloat16,
                               .recompute = kAllBlocks};
      SCOPED_TRACE(config.name);
      expect_equal(train(1, kEverythingOnHost, config, kSteps), train(1, kUnsharded, config, kSteps));
      if (masters == MasterWeights::kSplit)
        expect_equal(train(2, kShardedOnHost, config, kSteps), train(2, kFullySharded, config, kSteps));
    }
  }
}

/// The loss scale overflows the gradients of the first steps, which change no weight.
TEST(HostBlocksTest, SkippedStepsEqualThoseOfResidentBlocks) {
  const TrainConfig config{.name = "fp16",
                           .settings = {.loss_scale = engine::LossScaleSettings{.init_scale = 1e7}},
                           .dtype = at::kHalf,
                           .recompute = kAllBlocks};
  const TrainResult expected = train(1, kUnsharded, config, kNumSkippedSteps),
                    actual = train(1, kEverythingOnHost, config, kNumSkippedSteps);
  EXPECT_FALSE(std::isfinite(expected.norms.front()));
  EXPECT_TRUE(std::isfinite(expected.norms.back()));
  for (const auto& [name, weight] : expected.weights) EXPECT_TRUE(at::equal(actual.weights.at(name), weight)) << name;
  for (const auto& [name, tensor] : expected.state) EXPECT_TRUE(at::equal(actual.state.at(name), tensor)) << name;
}

TEST(HostBlocksTest, ResumeFromResidentOnesAndTheOtherWayRound) {
  const TrainConfig config{
      .name = "split", .settings = {.master_weights = engine::MasterWeights::kSplit}, .dtype = at::kBFloat16};
  const TrainResult expected = train(1, kUnsharded, config, 2), interrupted = train(1, kUnsharded, config, 1);
  for (const auto& [first, second] : {std::pair{kUnsharded, kHostGradients}, {kHostGradients, kUnsharded}}) {
    TrainResult resumed = train(1, second, config, 1, train(1, first, config, 1));
    EXPECT_EQ(resumed.losses.front(), expected.losses.back());
    for (const auto& [name, weight] : expected.weights)
      EXPECT_TRUE(at::equal(resumed.weights.at(name), weight)) << name;
  }
}

TEST(HostBlocksTest, StepsAreRetriedAfterTheyRanOutOfMemoryAt50Places) {
  constexpr int64_t kNumSteps = 26;  // all but the first one fail
  for (TrainConfig config :
       {TrainConfig{.name = "whole"}, TrainConfig{.name = "recomputed", .recompute = kAllBlocks}}) {
    SCOPED_TRACE(config.name);
    const TrainResult expected = train(1, kUnsharded, config, kNumSteps);
    config.runs_out_of_memory = true;
    const TrainResult retried = train(1, kEverythingOnHost, config, kNumSteps);
    EXPECT_EQ(retried.retried_steps, kNumSteps - 1);
    expect_equal(retried, expected);
  }
}

TEST(HostBlocksTest, ShardedStepsAreRetriedAfterOneRankRanOutOfMemory) {
  constexpr int64_t kNumSteps = 6;
  TrainConfig config{.name = "recomputed", .recompute = kAllBlocks};
  const TrainResult expected = train(3, kFullySharded, config, kNumSteps);
  config.runs_out_of_memory = true;
  const TrainResult retried = train(3, kShardedOnHost, config, kNumSteps);
  EXPECT_EQ(retried.retried_steps, kNumSteps - 1);
  expect_equal(retried, expected);
}

}  // namespace
}  // namespace vlmtrain::distributed
