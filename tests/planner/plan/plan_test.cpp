#include "vlmtrain/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "planner/plan_fixture.h"
#include "planner/user_error.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TinyPlanTest : public testing::Test {
 protected:
  PlanRequest request(int64_t global_batch_size, int64_t world_size = 1) const {
    return {.model = "smolvlm-tiny",
            .job = model_.job(),
            .target = find_target_gpu("rtx4090"),
            .limit_gigabytes = std::nullopt,
            .workload = make_workload(model_.shape({.images = 1}), global_batch_size, world_size),
            .constraints = {}};
  }

  const PresetFolder model_{"smolvlm-tiny"};
};

TEST_F(TinyPlanTest, TheGlobalBatchIsExact) {
  for (const int64_t global_batch_size : {1, 6, 7, 16, 48}) {
    for (const int64_t world_size : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} samples, {} ranks", global_batch_size, world_size));
      if (global_batch_size % world_size != 0) {
        EXPECT_THAT(
            get_usage_error([&] { make_plan(request(global_batch_size, world_size)); }),
            AllOf(HasSubstr(std::to_string(global_batch_size)), HasSubstr(std::to_string(world_size) + " ranks")));
        continue;
      }
      const Plan plan = make_plan(request(global_batch_size, world_size));
      ASSERT_TRUE(plan.fits);
      EXPECT_EQ(plan.best_estimate.step_config.micro_batch_size * plan.gradient_accumulation_steps() * world_size,
                global_batch_size);
      EXPECT_LE(plan.best_estimate.peaks.reserved_bytes, plan.limit.limit_bytes);
      for (const auto& estimate : plan.alternatives) {
        EXPECT_EQ((global_batch_size / world_size) % estimate.step_config.micro_batch_size, 0);
      }
    }
  }
}

/// A step takes the time of its micro-batches and of one optimizer step, which is the shorter one.
TEST_F(TinyPlanTest, StepTimeIsLinearInTheMicroBatches) {
  const auto predict_seconds = [&](int64_t micro_batches) {
    PlanRequest plan_request = request(micro_batches);
    plan_request.constraints.micro_batch_size = 1;
    return make_plan(plan_request).best_estimate.step_seconds;
  };
  const double micro_batch_seconds = (predict_seconds(6) - predict_seconds(2)) / 4;
  EXPECT_GT(micro_batch_seconds, 0);
  const double optimizer_seconds = predict_seconds(2) - 2 * micro_batch_seconds;
  EXPECT_GT(optimizer_seconds, 0);
  EXPECT_LT(optimizer_seconds, micro_batch_seconds);
  EXPECT_NEAR(predict_seconds(4), 4 * micro_batch_seconds + optimizer_seconds, 1e-9);
}

TEST_F(TinyPlanTest, AMicroBatchThatDoesNotDivideIsRejected) {
  PlanRequest invalid_request = request(48, 4);
  invalid_request.constraints.micro_batch_size = 5;
  EXPECT_THAT(
      get_usage_error([&] { make_plan(invalid_request); }),
      AllOf(HasSubstr("training.micro_batch_size: 5"), HasSubstr("12 samples"), HasSubstr("1, 2, 3, 4, 6, 12")));
  invalid_request.constraints.micro_batch_size = 24;
  EXPECT_THAT(get_usage_error([&] { make_plan(invalid_request); }), HasSubstr("1, 2, 3, 4, 6, 12"))
      << "more than a rank has";
}

TEST_F(TinyPlanTest, AModelThatCannotBeBuiltIsAUserError) {
  PlanRequest invalid_request = request(4);
  invalid_request.job.model = "/nowhere";
  EXPECT_THAT(get_usage_error([&] { make_plan(invalid_request); }, ExitCode::kBadData),
              HasSubstr("/nowhere: the folder does not exist"));
}

TEST_F(TinyPlanTest, AGpuWithoutBf16IsRejected) {
  PlanRequest t4 = request(4);
  t4.target = find_target_gpu("t4");
  EXPECT_THAT(get_usage_error([&] { make_plan(t4); }), AllOf(HasSubstr("Tesla T4"), HasSubstr("precision=fp32")));
  t4.job = make_job_with_precision(t4.job, engine::Precision::kFp32);
  EXPECT_TRUE(make_plan(t4).fits);
  t4.job = make_job_with_precision(t4.job, engine::Precision::kFp16);
  EXPECT_TRUE(make_plan(t4).fits);
}

/// Two ranks with two samples each are like one rank with two samples, except for communication.
TEST_F(TinyPlanTest, TheSuggestedGpuHasMemoryForCommunication) {
  const auto larger = [&](int64_t global_batch_size, int64_t world_size) {
    PlanRequest small = request(global_batch_size, world_size);
    small.gpu().memory_bytes = 400'000'000;
    const Plan plan = make_plan(small);
    EXPECT_FALSE(plan.fits);
    return plan.suggestions.back();
  };
  const Suggestion single_rank = larger(2, 1);
  const Suggestion multi_rank = larger(4, 2);
  EXPECT_THAT(single_rank.note, testing::ContainsRegex("a GPU with [0-9]+ GB or more; requires [0-9]+.[0-9] GB"));
  EXPECT_EQ(multi_rank.note.substr(0, multi_rank.note.find(';')),
            single_rank.note.substr(0, single_rank.note.find(';')));
  EXPECT_EQ(
      multi_rank.total_bytes - single_rank.total_bytes,
      compute_memory_limit(find_target_gpu("rtx4090"), MemoryMode::kBalanced, std::nullopt, 2).communication_bytes);
}

/// Ranks reduce their gradients in fp32 buckets, which takes no memory of PyTorch's allocator.
TEST_F(TinyPlanTest, RanksReduceTheirGradients) {
  const Plan single_rank = make_plan(request(4)), multi_rank = make_plan(request(16, 4));
  EXPECT_FALSE(single_rank.communication_estimate);
  ASSERT_TRUE(multi_rank.communication_estimate);
  const StepCollectives& collectives = multi_rank.communication_estimate->collectives;
  const double gradients = 4.0 * static_cast<double>(multi_rank.detail.num_trainable_parameters);
  EXPECT_GE(static_cast<double>(multi_rank.communication_estimate->bytes()), gradients);
  EXPECT_LE(static_cast<double>(multi_rank.communication_estimate->bytes()), 1.1 * gradients);
  EXPECT_EQ(multi_rank.peaks().reserved_bytes, single_rank.peaks().reserved_bytes);
  EXPECT_EQ(multi_rank.peaks().allocated_bytes, single_rank.peaks().allocated_bytes);
  EXPECT_DOUBLE_EQ(multi_rank.best_estimate.step_seconds,
                   single_rank.best_estimate.step_seconds + multi_rank.communication_estimate->exposed_seconds);
  EXPECT_GT(multi_rank.communication_estimate->exposed_seconds, 0);
  EXPECT_GE(collectives.num_overlapped_reductions, 0);
  EXPECT_LT(collectives.num_overlapped_reductions, std::ssize(collectives.gradient_reductions));
}

TEST_F(TinyPlanTest, GradientsOfSeparateTasksDoNotOverlap) {
  PlanRequest separate_tasks = request(8, 2);
  separate_tasks.job.objective.tasks = {.num_tasks = 2, .weights = {1, 1}, .resolve_gradient_conflicts = true};
  const Plan plan = make_plan(separate_tasks), plain_plan = make_plan(request(8, 2));
  EXPECT_EQ(plan.communication_estimate->collectives.num_overlapped_reductions, 0);
  EXPECT_GT(plan.communication_estimate->bytes(),
            1.9 * static_cast<double>(plain_plan.communication_estimate->bytes()));
}

/// Rank 1 of two has all large samples in the second step.
TEST_F(TinyPlanTest, TheRankThatNeedsMostIsReported) {
  PlanRequest request_with_steps = request(8, 2);
  const auto large = model_.shape({.images = 2}), small = model_.shape({.images = 0, .text_tokens = 80});
  const std::vector larger(4, large), smaller(4, small);
  request_with_steps.workload.worst_batches = {{.shapes = {large}, .first_sample_id = "large"}};
  request_with_steps.workload.sampled_steps = {{smaller, smaller}, {smaller, larger}};
  const Plan plan = make_plan(request_with_steps);
  ASSERT_EQ(plan.rank_step_peaks.size(), 2U);
  EXPECT_EQ(plan.rank_step_peaks[1].rank, 1);
  EXPECT_EQ(plan.rank_step_peaks[1].sampled_step_index, 1);
  EXPECT_GT(plan.rank_step_peaks[1].peaks.allocated_bytes, plan.rank_step_peaks[0].peaks.allocated_bytes);
  EXPECT_LE(plan.rank_step_peaks[1].peaks.reserved_bytes, plan.peaks().reserved_bytes);
  const auto json = plan.to_json()["ranks"];
  EXPECT_EQ(json[0]["rank"], 1);
}

TEST_F(TinyPlanTest, ReportsTheFreeMemoryOfASingleMicroBatch) {
  const Plan plan = make_plan(request(2));
  ASSERT_FALSE(plan.suggestions.empty());
  EXPECT_THAT(plan.suggestions.back().text(),
              testing::ContainsRegex("; 2[0-9].[0-9] GB remain free beyond the margin"));
}

TEST_F(TinyPlanTest, PlansTextOnlySamples) {
  PlanRequest text_request = request(8);
  text_request.workload = make_workload(model_.shape({.images = 0, .text_tokens = 200}), 8);
  const Plan plan = make_plan(text_request);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.best_estimate.step_config.recompute.vision, 0) << "there is nothing to recompute";
}

TEST_F(TinyPlanTest, IsDeterministic) {
  const Plan first = make_plan(request(16));
  const Plan second = make_plan(request(16));
  auto json = first.to_json();
  auto other = second.to_json();
  for (auto* one : {&json, &other}) {
    one->erase("plan_seconds");
    one->erase("dry_run_seconds");
    one->erase("rehearsal_seconds");
  }
  EXPECT_EQ(json, other);
}

TEST_F(TinyPlanTest, TheJsonMatchesThePlan) {
  const Plan plan = make_plan(request(16, 2));
  const auto json = plan.to_json();
  EXPECT_EQ(json["gradient_accumulation_steps"], plan.gradient_accumulation_steps());
  EXPECT_EQ(json["limit_bytes"], plan.limit.limit_bytes);
  const auto& memory = json["memory"];
  const auto bytes = [&](const char* key) { return memory[key].get<int64_t>(); };
  EXPECT_EQ(bytes("total_bytes"), bytes("reserved_peak_bytes") + bytes("context_bytes") + bytes("communication_bytes"));
  EXPECT_EQ(bytes("allocated_peak_bytes"), bytes("weights_bytes") + bytes("gradients_bytes") +
                                               bytes("optimizer_bytes") + bytes("activations_bytes") +
                                               bytes("workspace_bytes"));
  EXPECT_EQ(bytes("activations_bytes"), bytes("vision_activations_bytes") + bytes("language_activations_bytes") +
                                            bytes("loss_bytes") + bytes("input_bytes"));
  EXPECT_EQ(bytes("fragmentation_bytes"), bytes("reserved_peak_bytes") - bytes("allocated_peak_bytes"));
  EXPECT_GT(bytes("communication_bytes"), 0);
  EXPECT_EQ(json["alternatives"].size(), plan.alternatives.size());
  EXPECT_GT(json["plan_seconds"], 0);
}

}  // namespace
}  // namespace vlmtrain::planner
