#include "planner/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

using models::RecomputeBlocks;
using testing::ElementsAre;

constexpr int64_t kLanguageBlocks = 3;
constexpr int64_t kVisionBlocks = 1;

Outcome outcome(int64_t reserved) {
  Outcome outcome;
  outcome.steps = {{.allocated_bytes = reserved, .reserved_bytes = reserved}};
  return outcome;
}

/// A block of the language model saves 100 bytes and takes 10 seconds, of which its attention saves 10 and takes these;
/// one of the tower saves 50 and takes `vision_seconds`.
Probes probes(double attention_seconds, double vision_seconds) {
  Probes probes{.one = outcome(1000),
                .two = {},
                .vision = outcome(950),
                .language = outcome(700),
                .attention_kept = outcome(730)};
  probes.one.detail.emplace();
  probes.one.detail->vision_blocks = kVisionBlocks;
  probes.one.detail->language_blocks = kLanguageBlocks;
  probes.one.costs.emplace();
  probes.one.costs->vision_blocks_forward.seconds = kVisionBlocks * vision_seconds;
  probes.one.costs->language_blocks_forward.seconds = kLanguageBlocks * 10;
  probes.one.costs->language_attention_forward.seconds = kLanguageBlocks * attention_seconds;
  probes.one.costs->total.seconds = 100;
  return probes;
}

TEST(EstimateTest, WhatCostsLeastForItsBytesIsRecomputedFirst) {
  EXPECT_THAT(Estimate(probes(0.5, 1)).recompute_order(),
              ElementsAre(RecomputeBlocks{0, 0}, RecomputeBlocks{1, 0}, RecomputeBlocks{1, 1}, RecomputeBlocks{1, 2},
                          RecomputeBlocks{1, 3}))
      << "attention costs less for its bytes than the rest";
  EXPECT_THAT(Estimate(probes(4, 25)).recompute_order(),
              ElementsAre(RecomputeBlocks{0, 0, 0}, RecomputeBlocks{0, 1, 1}, RecomputeBlocks{0, 2, 2},
                          RecomputeBlocks{0, 3, 3}, RecomputeBlocks{0, 3, 2}, RecomputeBlocks{0, 3, 1},
                          RecomputeBlocks{0, 3, 0}, RecomputeBlocks{1, 3, 0}));
  EXPECT_THAT(Estimate(probes(4, 5)).recompute_order(),
              ElementsAre(RecomputeBlocks{0, 0, 0}, RecomputeBlocks{0, 1, 1}, RecomputeBlocks{0, 2, 2},
                          RecomputeBlocks{0, 3, 3}, RecomputeBlocks{1, 3, 3}, RecomputeBlocks{1, 3, 2},
                          RecomputeBlocks{1, 3, 1}, RecomputeBlocks{1, 3, 0}))
      << "the tower between the two";
}

TEST(EstimateTest, KeptAttentionTakesItsBytesAndSavesItsTime) {
  const Estimate estimate(probes(4, 25));
  EXPECT_EQ(estimate.reserved_bytes(1, {0, 2, 0}), 800);
  EXPECT_EQ(estimate.reserved_bytes(1, {0, 2, 1}), 810);
  EXPECT_DOUBLE_EQ(estimate.micro_batch_seconds(1, {0, 2, 0}), 120);
  EXPECT_DOUBLE_EQ(estimate.micro_batch_seconds(1, {0, 2, 1}), 116);
}

TEST(EstimateTest, AShortStreamsAttentionIsNotWorthAProbe) {
  EXPECT_FALSE(may_keep_attention(*probes(0.5, 1).one.costs));
  EXPECT_TRUE(may_keep_attention(*probes(4, 1).one.costs));
}

}  // namespace
}  // namespace vlmtrain::planner
