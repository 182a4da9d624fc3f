#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "planner/plan_fixture.h"
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
    PlanRequest request = make_one_image_request("smolvlm-256m", model_, gigabytes);
    request.auto_offload = auto_offload;
    return request;
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
  const auto make_fixed_plan = [&](Offload offload) {
    PlanRequest fixed = request(24, /*auto_offload=*/false);
    fixed.job.offload = offload;
    fixed.constraints.recompute.text = "none";
    return make_plan(fixed);
  };
  const Plan resident = make_fixed_plan(Offload::kNone), offloaded = make_fixed_plan(Offload::kOptimizer);
  EXPECT_NEAR(static_cast<double>(resident.peaks().allocated_bytes - offloaded.peaks().allocated_bytes),
              static_cast<double>(offloaded.detail.host_state_bytes), 1e6);
  EXPECT_NEAR(offloaded.costs->optimizer.seconds - resident.costs->optimizer.seconds,
              static_cast<double>(offloaded.detail.host_state_bytes) / get_host_link_speed(*offloaded.gpu().gpu).both,
              1e-9);
  EXPECT_EQ(offloaded.costs->total.num_kernel_launches, resident.costs->total.num_kernel_launches);
}

TEST_F(OffloadPlan, WeightsAndGradientsLeaveTwoBlocksOnTheGpu) {
  const auto make_fixed_plan = [&](Offload offload) {
    PlanRequest fixed = request(24, /*auto_offload=*/false);
    fixed.job.offload = offload;
    fixed.constraints.recompute.text = "none";
    return make_plan(fixed);
  };
  const auto bytes = [](const Plan& plan, memory::Component component) {
    return get_bytes(plan.detail.peak.bytes_by_component, component);
  };
  const Plan state = make_fixed_plan(Offload::kOptimizer), weights = make_fixed_plan(Offload::kWeights),
             gradients = make_fixed_plan(Offload::kGradients);
  const int64_t block_bytes = weights.detail.host_block_bytes;
  EXPECT_GT(block_bytes, 3e8) << "of 513 MB of weights";
  // Sums are in fp32; buckets and blocks align their tensors differently.
  EXPECT_NEAR(static_cast<double>(gradients.detail.host_gradient_bytes), 2.0 * static_cast<double>(block_bytes), 1e6);
  const int64_t slot_bytes =
      bytes(weights, memory::Component::kWeights) - (bytes(state, memory::Component::kWeights) - block_bytes);
  EXPECT_GT(slot_bytes, 0);
  EXPECT_LT(slot_bytes, block_bytes / 10);
  EXPECT_EQ(bytes(weights, memory::Component::kGradients) - bytes(gradients, memory::Component::kGradients),
            gradients.detail.host_gradient_bytes);
  // Passes take at least as long as two copies of most blocks, and sums are read and written in place.
  const double bandwidth = get_host_link_speed(*weights.gpu().gpu).in;
  EXPECT_GT(weights.costs->link.copies, 1.7 * static_cast<double>(block_bytes) / bandwidth);
  EXPECT_LT(weights.costs->link.copies, 2.1 * static_cast<double>(block_bytes) / bandwidth);
  EXPECT_GE(weights.best_estimate.step_seconds, weights.costs->link.copies + weights.costs->optimizer.seconds);
  EXPECT_DOUBLE_EQ(gradients.costs->link.in_place,
                   static_cast<double>(gradients.detail.host_gradient_bytes) / bandwidth);
}

class ActivationOffloadPlan : public OffloadPlan {
 protected:
  /// All blocks are recomputed.
  PlanRequest request_with_recomputation(bool offload_activations) const {
    PlanRequest fixed = request(24, /*auto_offload=*/false);
    fixed.job.offload_activations = offload_activations;
    fixed.constraints.recompute.text = "all";
    fixed.constraints.micro_batch_size = 1;
    return fixed;
  }
};

TEST_F(ActivationOffloadPlan, PeakIsSmallerByTheInputsOfBlocks) {
  const Plan resident = make_plan(request_with_recomputation(false)),
             offloaded = make_plan(request_with_recomputation(true));
  const int64_t host_bytes = offloaded.peaks().host_activation_bytes;
  // Both towers have bf16 inputs of 768 and 576 features; a tile has 1,024 patches.
  const auto& sample = offloaded.worst_batch.shapes.front();
  const int64_t input_bytes = 2 * (offloaded.detail.num_vision_blocks * sample.pixel_rows * 1024 * 768 +
                                   offloaded.detail.num_language_blocks * sample.tokens * 576);
  EXPECT_NEAR(static_cast<double>(host_bytes), static_cast<double>(input_bytes), 512.0 * 60) << "alignment";
  EXPECT_EQ(resident.host_bytes(), 0);
  EXPECT_EQ(offloaded.to_json().at("memory").at("host_activation_bytes"), host_bytes);
  EXPECT_EQ(offloaded.to_json().at("memory").at("host_bytes"), host_bytes);
  const int64_t saved_bytes = resident.peaks().allocated_bytes - offloaded.peaks().allocated_bytes;
  EXPECT_GT(saved_bytes, host_bytes / 2) << "two inputs are on the GPU, and the peak may move";
  EXPECT_LT(saved_bytes, host_bytes);
  const double speed = get_host_link_speed(*offloaded.gpu().gpu).in;
  EXPECT_NEAR(offloaded.costs->link.copies - resident.costs->link.copies, 2 * static_cast<double>(host_bytes) / speed,
              0.1 * static_cast<double>(host_bytes) / speed);
}

TEST_F(ActivationOffloadPlan, HostMemoryThatIsTooSmallTakesAPartOfThem) {
  const int64_t all_bytes = make_plan(request_with_recomputation(true)).peaks().host_activation_bytes;
  PlanRequest small = request_with_recomputation(true);
  small.host_memory_bytes = all_bytes / 2;
  const Plan plan = make_plan(small);
  EXPECT_TRUE(plan.fits);
  EXPECT_GT(plan.host_bytes(), all_bytes / 4);
  EXPECT_LE(plan.host_bytes(), all_bytes / 2);
}

TEST_F(ActivationOffloadPlan, AutoOffloadsThemWhereThatFitsOrIsFaster) {
  PlanRequest automatic = request_with_recomputation(false);
  automatic.auto_offload_activations = true;
  automatic.constraints.recompute = {};
  EXPECT_FALSE(make_plan(automatic).job.offload_activations) << "nothing is recomputed";
  automatic.constraints.recompute.text = "all";
  const Plan resident = make_plan(request_with_recomputation(false)),
             offloaded = make_plan(request_with_recomputation(true));
  ASSERT_LT(offloaded.total_bytes(), resident.total_bytes());
  constexpr double kUsableShare = 0.95;
  automatic.limit_gigabytes =
      static_cast<double>(resident.total_bytes() + offloaded.total_bytes()) / 2 / kUsableShare / 1e9;
  const Plan plan = make_plan(automatic);
  EXPECT_TRUE(plan.fits);
  EXPECT_TRUE(plan.job.offload_activations);
}

TEST_F(OffloadPlan, AMeasuredLinkReplacesTheDataSheet) {
  PlanRequest fixed = request(24, /*auto_offload=*/false);
  fixed.job.offload = Offload::kGradients;
  fixed.job.offload_activations = true;
  fixed.constraints.recompute.text = "all";
  fixed.constraints.micro_batch_size = 1;
  const Plan sheet = make_plan(fixed);
  const memory::HostLinkSpeed link = get_host_link_speed(*sheet.gpu().gpu);
  fixed.job.host_link = memory::HostLinkSpeed{.in = link.in / 2, .out = link.out / 4, .both = link.both / 8};
  const Plan measured = make_plan(fixed);
  EXPECT_NEAR(measured.costs->link.in_place, 8 * sheet.costs->link.in_place, 1e-9);
  EXPECT_GT(measured.costs->link.copies, 2 * sheet.costs->link.copies);
  EXPECT_LT(measured.costs->link.copies, 4 * sheet.costs->link.copies);
}

TEST_F(OffloadPlan, RanksWithFullShardingKeepTheirShardsOnTheHost) {
  const auto plan_ranks = [&](Offload offload) {
    PlanRequest fixed = request(24, /*auto_offload=*/false);
    fixed.workload.global_batch_size = fixed.workload.world_size = 4;
    fixed.job.sharding = engine::ShardingStrategy::kFull;
    fixed.job.offload = offload;
    fixed.constraints.recompute.text = "none";
    return make_plan(fixed);
  };
  PlanRequest one_rank = request(24, /*auto_offload=*/false);
  one_rank.job.offload = Offload::kGradients;
  const Plan whole = make_plan(one_rank), resident = plan_ranks(Offload::kNone),
             offloaded = plan_ranks(Offload::kGradients);
  const auto expect_quarter = [](int64_t shard, int64_t all) {
    EXPECT_NEAR(static_cast<double>(shard), static_cast<double>(all) / 4, 0.01 * static_cast<double>(all));
  };
  expect_quarter(offloaded.detail.host_block_bytes, whole.detail.host_block_bytes);
  expect_quarter(offloaded.detail.host_gradient_bytes, whole.detail.host_gradient_bytes);
  const int64_t host_bytes = offloaded.host_bytes();
  EXPECT_NEAR(static_cast<double>(resident.peaks().allocated_bytes - offloaded.peaks().allocated_bytes),
              static_cast<double>(host_bytes), 0.02 * static_cast<double>(host_bytes));
}

TEST_F(OffloadPlan, FrozenWeightsAreOnTheHost) {
  PlanRequest lora = request(1.5);
  lora.job.lora.emplace();
  const Plan plan = make_plan(lora);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.job.offload, Offload::kWeights);
  EXPECT_GT(plan.detail.host_block_bytes, 3e8);
  EXPECT_EQ(plan.detail.host_gradient_bytes, 0);
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

TEST_F(OffloadPlan, OnlyStatesThatFitAreSuggestedForTheHost) {
  PlanRequest fixed = request(24, /*auto_offload=*/false);
  fixed.job.offload = Offload::kOptimizer;
  fixed.host_memory_bytes = 200'000'000;
  EXPECT_THAT(get_usage_error([&] { make_plan(fixed); }, ExitCode::kDoesNotFit),
              testing::EndsWith("set memory.offload=auto, which chooses what fits"));
}

TEST_F(OffloadPlan, AutoThatDoesNotFitStatesTheLeastMemory) {
  const Plan plan = make_plan(request(0.7));
  PlanRequest fixed = request(0.7, /*auto_offload=*/false);
  fixed.job.offload = Offload::kGradients;
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.job.offload, Offload::kGradients);
  EXPECT_EQ(plan.total_bytes(), make_plan(fixed).total_bytes());
}

TEST_F(OffloadPlan, AutoNamesTheMissingHostMemory) {
  PlanRequest small = request(4.5);
  small.host_memory_bytes = 1'000'000'000;
  small.with_suggestions = true;
  const Plan plan = make_plan(small);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.job.offload, Offload::kNone);
  EXPECT_TRUE(std::ranges::any_of(plan.suggestions, [](const Suggestion& suggestion) {
    return suggestion.text().find("memory.offload=optimizer needs 2.6 GB of host memory") != std::string::npos;
  }));
}

TEST_F(OffloadPlan, SuggestionsLeaveTheMarginOfEachRank) {
  const auto suggests_offload = [&](int64_t host_bytes, int64_t world_size) {
    PlanRequest small = request(4.5, /*auto_offload=*/false);
    small.with_suggestions = true;
    small.workload.global_batch_size = small.workload.world_size = world_size;
    small.host_memory_bytes = host_bytes;
    return std::ranges::any_of(make_plan(small).suggestions, [](const Suggestion& suggestion) {
      return suggestion.arguments == std::vector<std::string>{"memory.offload=optimizer"};
    });
  };
  EXPECT_TRUE(suggests_offload(2'800'000'000, 1));
  EXPECT_FALSE(suggests_offload(2'600'000'000, 1)) << "5 % stay free";
  EXPECT_FALSE(suggests_offload(2'800'000'000, 2)) << "two ranks share it";
}

TEST_F(OffloadPlan, IsSuggestedWithItsCost) {
  PlanRequest small = request(4.5, /*auto_offload=*/false);
  small.with_suggestions = true;
  const Plan plan = make_plan(small);
  EXPECT_FALSE(plan.fits);
  const auto it = std::ranges::find_if(plan.suggestions, [](const Suggestion& suggestion) {
    return suggestion.arguments == std::vector<std::string>{"memory.offload=optimizer"};
  });
  ASSERT_NE(it, plan.suggestions.end());
  EXPECT_TRUE(it->makes_plan_fit);
  EXPECT_THAT(it->note, HasSubstr("keeps 2.6 GB in host memory; a step takes 0.10 s more"));
}

}  // namespace
}  // namespace vlmtrain::planner
