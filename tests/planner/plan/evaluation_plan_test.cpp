#include "vlmtrain/planner/evaluation_plan.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "parity/case.h"
#include "planner/dry_run.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

using testing::IsEmpty;

/// Evaluations of SmolVLM-256M with images of four tiles and an overview, during its training.
class EvaluationPlanTest : public testing::Test {
 protected:
  EvaluationPlanTest() {
    request_.job = model_.job();
    request_.target = find_target_gpu("h100");
    request_.training_step_config = make_step_config(1);
    request_.training_samples = {{shape_, 1}};
    request_.worst_batches = {{.shapes = std::vector(32, shape_), .first_sample_id = "one"}};
    request_.max_new_tokens = 32;
    request_.target_reserved_bytes = request_.limit_bytes = kUnlimited;
  }

  EvaluationPlan plan() const { return plan_evaluation(request_); }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape shape_ = model_.shape({.images = 1, .image_width = 1024, .image_height = 1024});
  EvaluationRequest request_;
};

TEST_F(EvaluationPlanTest, TakesTheLargestBatchWithinTheTarget) {
  const EvaluationPlan largest = plan();
  EXPECT_EQ(largest.batch_size, 32);
  EXPECT_TRUE(largest.fits);
  int64_t batch_size = largest.batch_size;
  for (int64_t peak = largest.peaks.reserved_bytes; batch_size > 1;) {
    request_.target_reserved_bytes = peak - 1;
    const EvaluationPlan smaller = plan();
    EXPECT_EQ(smaller.batch_size, batch_size / 2);
    EXPECT_LT(smaller.peaks.reserved_bytes, peak);
    EXPECT_EQ(smaller.layout.vision_tiles_per_pass, 0);
    peak = smaller.peaks.reserved_bytes;
    batch_size = smaller.batch_size;
  }
  request_.target_reserved_bytes = 0;
  const EvaluationPlan single = plan();
  EXPECT_EQ(single.batch_size, 1);
  EXPECT_TRUE(single.fits) << "above what is wanted, within the limit";
  EXPECT_EQ(single.layout.vision_tiles_per_pass, 0);
  request_.limit_bytes = single.peaks.reserved_bytes - 1;
  const EvaluationPlan smallest = plan();
  EXPECT_EQ(smallest.batch_size, 1);
  EXPECT_EQ(smallest.layout.vision_tiles_per_pass, 1);
  EXPECT_LE(smallest.peaks.allocated_bytes, single.peaks.allocated_bytes);
  request_.limit_bytes = 0;
  EXPECT_FALSE(plan().fits);
}

TEST_F(EvaluationPlanTest, IncludesTrainingStateAndGeneration) {
  const EvaluationPlan full = plan();
  request_.max_new_tokens = 0;
  const EvaluationPlan without_answers = plan();
  EXPECT_LE(without_answers.peaks.allocated_bytes, full.peaks.allocated_bytes);
  request_.max_new_tokens = 20'000;
  EXPECT_GT(plan().peaks.allocated_bytes, full.peaks.allocated_bytes) << "the room for long answers";
  request_.max_new_tokens = 32;
  request_.training_step_config.reset();
  request_.training_samples.clear();
  // AdamW's moments and master weights of 256 million parameters, in fp32.
  EXPECT_LT(plan().peaks.allocated_bytes, full.peaks.allocated_bytes - int64_t{256'000'000} * 12);
}

TEST_F(EvaluationPlanTest, AFixedBatchSizeIsKept) {
  request_.batch_size = 6;
  EXPECT_EQ(plan().batch_size, 6);
  request_.target_reserved_bytes = request_.limit_bytes = 0;
  const EvaluationPlan too_large = plan();
  EXPECT_EQ(too_large.batch_size, 6);
  EXPECT_FALSE(too_large.fits);
}

TEST_F(EvaluationPlanTest, IsPlannedTheSameWayOnTheCpu) {
  request_.max_batch_size = 4;
  request_.target = TargetHost{};
  const EvaluationPlan largest = plan();
  EXPECT_EQ(largest.batch_size, 4);
  request_.target_reserved_bytes = request_.limit_bytes = largest.peaks.reserved_bytes - 1;
  EXPECT_EQ(plan().batch_size, 2);
}

TEST(PlanBytesTest, CountsEvaluationsUpToTheLimit) {
  Plan plan;
  plan.limit.limit_bytes = 100;
  plan.limit.context_bytes = 7;
  plan.best_estimate.peaks.reserved_bytes = 60;
  EXPECT_EQ(plan.total_bytes(), 67);
  for (const auto& [evaluation_bytes, total_bytes] : {std::pair{50, 67}, {80, 87}, {300, 107}}) {
    plan.evaluation = EvaluationPlan{.peaks = {.reserved_bytes = evaluation_bytes}};
    EXPECT_EQ(plan.total_bytes(), total_bytes);
    EXPECT_EQ(plan.training_bytes(), 67) << "checkpoints are copied during training";
  }
}

}  // namespace
}  // namespace vlmtrain::planner
