#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "planner/dry_run.h"
#include "planner/user_error.h"
#include "vlmtrain/planner/communication.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

using engine::Offload;
using testing::AllOf;
using testing::HasSubstr;

class OffloadPlan : public testing::Test {
 protected:
  /// A full fine-tuning in bf16 with fp32 moments, of which 2.6 GB may be in host memory.
  PlanRequest request(double gigabytes, bool auto_offload = true) const {
    return {.model = "smolvlm-256m",
            .job = model_.job(),
            .auto_offload = auto_offload,
            .target = find_target_gpu("rtx4090"),
            .limit_gigabytes = gigabytes,
            .workload = {.worst_batches = {{.shapes = {model_.shape({.images = 1})}, .first_sample_id = {}}},
                         .global_batch_size = 1},
            .constraints = {},
            .with_split_plan = false};
  }

  const PresetFolder model_{"smolvlm-256m"};
};

TEST_F(OffloadPlan, StateIsOnTheHostIfItDoesNotFitOnTheGpu) {
  const Plan plan = make_plan(request(4.5));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.job.offload, Offload::kOptimizer);
  // Low halves and both moments; tensors of less than 4,096 elements stay on the GPU.
  const auto expected_bytes = static_cast<double>(10 * plan.detail.num_trainable_parameters);
  EXPECT_NEAR(static_cast<double>(plan.detail.host_state_bytes), expected_bytes, 0.01 * expected_bytes);
  const auto json = plan.to_json();
  EXPECT_EQ(json.at("offload"), "optimizer");
  EXPECT_EQ(json.at("memory").at("host_bytes"), plan.detail.host_state_bytes);
}

TEST_F(OffloadPlan, StateStaysOnAGpuThatHoldsEverything) {
  const Plan plan = make_plan(request(24));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.job.offload, Offload::kNone);
  EXPECT_EQ(plan.detail.host_bytes(), 0);
}

TEST_F(OffloadPlan, PeakIsSmallerAndTheUpdateTakesTheTimeOfTheLink) {
  const auto plan_with = [&](Offload offload) {
    PlanRequest fixed = request(24, /*auto_offload=*/false);
    fixed.job.offload = offload;
    fixed.constraints.recompute.text = "none";
    return make_plan(fixed);
  };
  const Plan resident = plan_with(Offload::kNone), offloaded = plan_with(Offload::kOptimizer);
  EXPECT_NEAR(static_cast<double>(resident.peaks().allocated_bytes - offloaded.peaks().allocated_bytes),
              static_cast<double>(offloaded.detail.host_state_bytes), 1e6);
  EXPECT_NEAR(offloaded.costs->optimizer.seconds,
              static_cast<double>(offloaded.detail.host_state_bytes) / get_host_link_bandwidth(*offloaded.gpu().gpu),
              1e-9);
  EXPECT_EQ(offloaded.costs->total.num_kernel_launches, resident.costs->total.num_kernel_launches);
}

TEST_F(OffloadPlan, TooLittleHostMemoryIsAnErrorWithTheMissingAmount) {
  PlanRequest fixed = request(24, /*auto_offload=*/false);
  fixed.job.offload = Offload::kOptimizer;
  fixed.host_memory_bytes = 2'000'000'000;
  EXPECT_THAT(get_usage_error([&] { make_plan(fixed); }, ExitCode::kDoesNotFit),
              AllOf(HasSubstr("memory.offload: needs 2.6 GB of host memory; of 2.0 GB, 5 % stay free"),
                    HasSubstr("so 0.7 GB are missing"), HasSubstr("training.optimizer_states=8bit")));
  fixed.host_memory_bytes = 2'800'000'000;
  EXPECT_TRUE(make_plan(fixed).fits);
}

TEST_F(OffloadPlan, RanksOfAMachineShareItsHostMemory) {
  PlanRequest fixed = request(24, /*auto_offload=*/false);
  fixed.job.offload = Offload::kOptimizer;
  fixed.workload.global_batch_size = fixed.workload.world_size = 2;
  fixed.host_memory_bytes = 2'800'000'000;
  EXPECT_THAT(get_usage_error([&] { make_plan(fixed); }, ExitCode::kDoesNotFit), HasSubstr("needs 5.1 GB"));
  fixed.workload.num_nodes = 2;
  EXPECT_TRUE(make_plan(fixed).fits);
}

TEST_F(OffloadPlan, AutoNamesTheMissingHostMemory) {
  PlanRequest small = request(4.5);
  small.host_memory_bytes = 1'000'000'000;
  const Plan plan = make_plan(small);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.job.offload, Offload::kNone);
  EXPECT_TRUE(std::ranges::any_of(plan.suggestions, [](const Suggestion& suggestion) {
    return suggestion.text().find("memory.offload=optimizer needs 2.6 GB of host memory") != std::string::npos;
  }));
}

TEST_F(OffloadPlan, IsSuggestedWithItsCost) {
  const Plan plan = make_plan(request(4.5, /*auto_offload=*/false));
  EXPECT_FALSE(plan.fits);
  const auto it = std::ranges::find_if(plan.suggestions, [](const Suggestion& suggestion) {
    return suggestion.arguments == std::vector<std::string>{"memory.offload=optimizer"};
  });
  ASSERT_NE(it, plan.suggestions.end());
  EXPECT_TRUE(it->makes_plan_fit);
  EXPECT_THAT(it->note, AllOf(HasSubstr("in host memory, about 2.6 GB"), HasSubstr("0.10 s per step")));
}

}  // namespace
}  // namespace vlmtrain::planner
