#include "vlmtrain/planner/evaluation_plan.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "parity/case.h"
#include "planner/rehearsal.h"
#include "vlmtrain/data/shape.h"

namespace vlmtrain::planner {
namespace {

using testing::IsEmpty;

/// Evaluations of SmolVLM-256M with pictures of four tiles and the whole, beside its training.
class EvaluationPlanTest : public testing::Test {
 protected:
  EvaluationPlanTest() {
    request_.job = model_.job();
    request_.training = micro_batches_of(1);
    request_.training_samples = {{shape_, 1}};
    request_.candidates = {{.shapes = std::vector(32, shape_), .first_id = "one"}};
    request_.max_new_tokens = 32;
    request_.wanted_bytes = request_.limit_bytes = kUnlimited;
  }

  EvaluationPlan plan() const { return plan_evaluation(request_, {.gpu = "h100", .memory_bytes = kUnlimited}); }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape shape_ = model_.shape({.images = 1, .image_width = 1024, .image_height = 1024});
  EvaluationRequest request_;
};

TEST_F(EvaluationPlanTest, TakesTheLargestBatchThatStaysWithinWhatIsWanted) {
  const EvaluationPlan most = plan();
  EXPECT_EQ(most.batch_size, 32);
  EXPECT_TRUE(most.fits);
  int64_t batch_size = most.batch_size;
  for (int64_t peak = most.peaks.reserved_bytes; batch_size > 1;) {
    request_.wanted_bytes = peak - 1;
    const EvaluationPlan smaller = plan();
    EXPECT_EQ(smaller.batch_size, batch_size / 2);
    EXPECT_LT(smaller.peaks.reserved_bytes, peak);
    EXPECT_EQ(smaller.layout.vision_tiles_per_pass, 0);
    peak = smaller.peaks.reserved_bytes;
    batch_size = smaller.batch_size;
  }
  request_.wanted_bytes = 0;
  const EvaluationPlan single = plan();
  EXPECT_EQ(single.batch_size, 1);
  EXPECT_TRUE(single.fits) << "above what is wanted, within the limit";
  EXPECT_EQ(single.layout.vision_tiles_per_pass, 0);
  request_.limit_bytes = single.peaks.reserved_bytes - 1;
  const EvaluationPlan least = plan();
  EXPECT_EQ(least.batch_size, 1);
  EXPECT_EQ(least.layout.vision_tiles_per_pass, 1);
  EXPECT_LE(least.peaks.allocated_bytes, single.peaks.allocated_bytes);
  request_.limit_bytes = 0;
  EXPECT_FALSE(plan().fits);
}

TEST_F(EvaluationPlanTest, CountsWhatTheTrainingHoldsAndTheAnswers) {
  const EvaluationPlan all = plan();
  request_.max_new_tokens = 0;
  const EvaluationPlan without_answers = plan();
  EXPECT_LE(without_answers.peaks.allocated_bytes, all.peaks.allocated_bytes);
  request_.max_new_tokens = 20'000;
  EXPECT_GT(plan().peaks.allocated_bytes, all.peaks.allocated_bytes) << "the room for long answers";
  request_.max_new_tokens = 32;
  request_.training.reset();
  request_.training_samples.clear();
  // AdamW's moments and masters of 256 million parameters, in fp32.
  EXPECT_LT(plan().peaks.allocated_bytes, all.peaks.allocated_bytes - int64_t{256'000'000} * 12);
}

TEST_F(EvaluationPlanTest, AFixedBatchStays) {
  request_.batch_size = 6;
  EXPECT_EQ(plan().batch_size, 6);
  request_.wanted_bytes = request_.limit_bytes = 0;
  const EvaluationPlan too_large = plan();
  EXPECT_EQ(too_large.batch_size, 6);
  EXPECT_FALSE(too_large.fits);
}

TEST_F(EvaluationPlanTest, OnTheHostItIsFoundTheSameWay) {
  request_.largest_batch = 4;
  const EvaluationPlan most = plan_evaluation_on_host(request_);
  EXPECT_EQ(most.batch_size, 4);
  request_.wanted_bytes = request_.limit_bytes = most.peaks.reserved_bytes - 1;
  EXPECT_EQ(plan_evaluation_on_host(request_).batch_size, 2);
}

}  // namespace
}  // namespace vlmtrain::planner
