#include "planner/search/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::planner {
namespace {

using models::RecomputeBlockCounts;
using testing::ElementsAre;

constexpr int64_t kLanguageBlocks = 3;
constexpr int64_t kVisionBlocks = 1;

DryRunResult make_result(int64_t reserved) {
  DryRunResult result;
  result.steps = {{.allocated_bytes = reserved, .reserved_bytes = reserved}};
  return result;
}

/// A block of the language model saves 100 bytes and takes 10 seconds. Its attention has 10 of
/// these bytes and `attention_seconds`. A block of the tower saves 50 bytes and takes
/// `vision_seconds`.
ProbeResults make_probes(double attention_seconds, double vision_seconds) {
  ProbeResults probe_results{.blocks = {.vision = kVisionBlocks, .language = kLanguageBlocks},
                             .one_sample_result = make_result(1000),
                             .two_samples = {},
                             .vision = make_result(950),
                             .language = make_result(700),
                             .language_selective = make_result(730)};
  probe_results.one_sample_result.costs.emplace();
  probe_results.one_sample_result.costs->vision_blocks_forward.seconds = kVisionBlocks * vision_seconds;
  probe_results.one_sample_result.costs->language_blocks_forward.seconds = kLanguageBlocks * 10;
  probe_results.one_sample_result.costs->language_attention_forward.seconds = kLanguageBlocks * attention_seconds;
  probe_results.one_sample_result.costs->passes_seconds = 100;
  return probe_results;
}

TEST(CostModelTest, BlocksWithTheLowestCostPerByteAreRecomputedFirst) {
  EXPECT_THAT(CostModel(make_probes(0.5, 1)).make_recompute_order(),
              ElementsAre(RecomputeBlockCounts{0, 0}, RecomputeBlockCounts{1, 0}, RecomputeBlockCounts{1, 1},
                          RecomputeBlockCounts{1, 2}, RecomputeBlockCounts{1, 3}))
      << "attention costs less for its bytes than the rest";
  EXPECT_THAT(CostModel(make_probes(4, 25)).make_recompute_order(),
              ElementsAre(RecomputeBlockCounts{0, 0, 0}, RecomputeBlockCounts{0, 1, 1}, RecomputeBlockCounts{0, 2, 2},
                          RecomputeBlockCounts{0, 3, 3}, RecomputeBlockCounts{0, 3, 2}, RecomputeBlockCounts{0, 3, 1},
                          RecomputeBlockCounts{0, 3, 0}, RecomputeBlockCounts{1, 3, 0}));
  EXPECT_THAT(CostModel(make_probes(4, 5)).make_recompute_order(),
              ElementsAre(RecomputeBlockCounts{0, 0, 0}, RecomputeBlockCounts{0, 1, 1}, RecomputeBlockCounts{0, 2, 2},
                          RecomputeBlockCounts{0, 3, 3}, RecomputeBlockCounts{1, 3, 3}, RecomputeBlockCounts{1, 3, 2},
                          RecomputeBlockCounts{1, 3, 1}, RecomputeBlockCounts{1, 3, 0}))
      << "the tower between the two";
}

TEST(CostModelTest, KeptAttentionTradesBytesForTime) {
  const CostModel cost_model(make_probes(4, 25));
  EXPECT_EQ(cost_model.predict_reserved_bytes(1, {0, 2, 0}), 800);
  EXPECT_EQ(cost_model.predict_reserved_bytes(1, {0, 2, 1}), 810);
  EXPECT_DOUBLE_EQ(cost_model.predict_micro_batch_seconds(1, {0, 2, 0}), 120);
  EXPECT_DOUBLE_EQ(cost_model.predict_micro_batch_seconds(1, {0, 2, 1}), 116);
}

TEST(CostModelTest, ShortMicroBatchesWaitForTheLinkToHostMemory) {
  ProbeResults probe_results = make_probes(4, 25);
  probe_results.one_sample_result.costs->link = {.copies = 110, .in_place = 7};
  const CostModel cost_model(probe_results);
  EXPECT_DOUBLE_EQ(cost_model.predict_micro_batch_seconds(1, {}), 110 + 7);
  EXPECT_DOUBLE_EQ(cost_model.predict_micro_batch_seconds(1, {0, 2, 0}), 120 + 7);
  EXPECT_DOUBLE_EQ(cost_model.predict_step_seconds(2, 2, {}), 2 * (110 + 7));
}

TEST(CostModelTest, ShortSequencesNeedNoAttentionProbe) {
  EXPECT_FALSE(is_selective_checkpointing_worthwhile(*make_probes(0.5, 1).one_sample_result.costs));
  EXPECT_TRUE(is_selective_checkpointing_worthwhile(*make_probes(4, 1).one_sample_result.costs));
}

/// A block of the tower saves more bytes than one of the language model, so that it comes first.
TEST(CostModelTest, WithoutCostsARecomputedBlockTakesLongerThanAnyMicroBatches) {
  const CostModel cost_model(ProbeResults{.blocks = {.vision = kVisionBlocks, .language = kLanguageBlocks},
                                          .one_sample_result = make_result(1000),
                                          .two_samples = make_result(1500),
                                          .vision = make_result(700),
                                          .language = make_result(700),
                                          .language_selective = {}});
  constexpr double kGlobalBatch = 64;
  const double without_recomputation = cost_model.predict_step_seconds(kGlobalBatch, kGlobalBatch, {});
  EXPECT_LT(without_recomputation, cost_model.predict_step_seconds(1, kGlobalBatch, {1, 0}));
  EXPECT_LT(cost_model.predict_step_seconds(kGlobalBatch, kGlobalBatch, {1, 0}),
            cost_model.predict_step_seconds(1, kGlobalBatch, {1, 1}));
  EXPECT_LT(cost_model.predict_step_seconds(8, kGlobalBatch, {1, 0}),
            cost_model.predict_step_seconds(16, kGlobalBatch, {1, 0}))
      << "larger micro-batches are faster";
  EXPECT_THAT(cost_model.make_recompute_order(),
              ElementsAre(RecomputeBlockCounts{}, RecomputeBlockCounts{1, 0}, RecomputeBlockCounts{1, 1},
                          RecomputeBlockCounts{1, 2}, RecomputeBlockCounts{1, 3}));
}

}  // namespace
}  // namespace vlmtrain::planner
