#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "planner/dry_run.h"
#include "planner/user_error.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

using engine::ShardingStrategy;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ShardingSearchTest, PossibleShardingsAreOrderedByTheirSavings) {
  Job job;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre(ShardingStrategy::kNone));
  job.world_size = 4;
  EXPECT_THAT(list_possible_shardings(job),
              ElementsAre(ShardingStrategy::kNone, ShardingStrategy::kOptimizer, ShardingStrategy::kFull));
  job.num_nodes = 4;
  EXPECT_THAT(list_possible_shardings(job),
              ElementsAre(ShardingStrategy::kNone, ShardingStrategy::kOptimizer, ShardingStrategy::kFull))
      << "of one rank each";
  job.num_nodes = 2;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre(ShardingStrategy::kNone, ShardingStrategy::kOptimizer,
                                                        ShardingStrategy::kHybrid, ShardingStrategy::kFull));
  job.lora.emplace();
  job.lora->use_dora = true;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre(ShardingStrategy::kNone, ShardingStrategy::kOptimizer))
      << "of whole weights";
  job.objective.tasks.resolve_gradient_conflicts = true;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre(ShardingStrategy::kNone)) << "of whole gradients";
}

TEST(ShardingSearchTest, WeightsAndGradientsInHostMemoryRestrictIt) {
  Job job;
  job.world_size = 4;
  job.offload = engine::Offload::kWeights;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre(ShardingStrategy::kNone, ShardingStrategy::kFull));
  job.offload = engine::Offload::kGradients;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre(ShardingStrategy::kFull));
  job.optimizer.kind = engine::OptimizerKind::kMuon;
  EXPECT_THAT(list_possible_shardings(job), ElementsAre()) << "Muon excludes full sharding";
}

TEST(ShardingSearchTest, RefusedOffloadsNameWhatIsPossible) {
  Job job;
  job.world_size = 2;
  job.offload = engine::Offload::kGradients;
  const auto get_error = [&](bool auto_sharding) {
    return get_usage_error([&] { check_offload(job, auto_sharding); }, ExitCode::kUsage);
  };
  EXPECT_NO_THROW(check_offload(job, /*auto_sharding=*/true));
  EXPECT_THAT(get_error(false), HasSubstr("memory.offload=gradients: gradients of 2 ranks cannot be reduced in host "
                                          "memory; set distributed.sharding=full or memory.offload=weights"));
  job.sharding = ShardingStrategy::kOptimizer;
  EXPECT_THAT(get_error(false), HasSubstr("memory.offload=gradients and distributed.sharding=optimizer"));
  EXPECT_THAT(get_error(false), HasSubstr("set distributed.sharding=full or memory.offload=optimizer"));
  job.sharding = ShardingStrategy::kNone;
  for (const bool auto_sharding : {false, true}) {
    job.objective.tasks.resolve_gradient_conflicts = true;
    EXPECT_THAT(get_error(auto_sharding), testing::EndsWith("; set memory.offload=weights")) << "PCGrad";
    job.objective.tasks.resolve_gradient_conflicts = false;
    job.optimizer.kind = engine::OptimizerKind::kMuon;
    EXPECT_THAT(get_error(auto_sharding), testing::EndsWith("; set memory.offload=weights")) << "Muon";
    job.optimizer.kind = engine::OptimizerKind::kAdamW;
  }
  job.lora.emplace();
  EXPECT_THAT(get_error(true), HasSubstr("LoRA's adapters stay on the GPU; set memory.offload=weights"));
  job.lora->use_dora = true;
  EXPECT_THAT(get_error(true), HasSubstr("DoRA needs the norms"));
  EXPECT_THAT(get_error(true), testing::EndsWith("; set memory.offload=optimizer"));
}

/// With a slow network, for GPUs with and without enough memory.
TEST(ShardingSearchTest, TheFastestShardingThatFitsIsChosen) {
  const PresetFolder model("smolvlm-tiny");
  for (const double gigabytes : {8.0, 0.66}) {
    PlanRequest request{.model = "smolvlm-tiny",
                        .job = model.job(),
                        .target = find_target_gpu("rtx4090"),
                        .limit_gigabytes = gigabytes,
                        .workload = {.worst_batches = {{.shapes = {model.shape({.images = 1})}, .first_sample_id = {}}},
                                     .global_batch_size = 16,
                                     .world_size = 4,
                                     .num_nodes = 2,
                                     .network_gbit = 10},
                        .constraints = {},
                        .with_suggestions = false};
    request.job.num_nodes = 2;
    request.job.world_size = 4;
    double fastest = std::numeric_limits<double>::infinity();
    bool any_fits = false;
    for (const auto sharding : list_possible_shardings(request.job)) {
      request.job.sharding = sharding;
      const Plan plan = make_plan(request);
      SCOPED_TRACE(engine::to_string(sharding));
      any_fits |= plan.fits;
      if (plan.fits) fastest = std::min(fastest, plan.best_estimate.step_seconds);
    }
    request.auto_sharding = true;
    const Plan best_plan = make_plan(request);
    EXPECT_EQ(best_plan.fits, any_fits) << gigabytes;
    EXPECT_EQ(best_plan.fits ? best_plan.best_estimate.step_seconds : fastest, fastest) << gigabytes;
  }
}

}  // namespace
}  // namespace vlmtrain::planner
