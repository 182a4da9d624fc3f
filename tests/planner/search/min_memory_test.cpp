#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/dry_run.h"
#include "planner/search/plan_evaluator.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

struct MinMemoryCase {
  const char* name;
  const char* preset;
  double gpu_gigabytes;
  models::SyntheticSample sample;
  int64_t global_batch;
  std::optional<nn::LoraSettings> lora;
  models::FrozenParts frozen_parts = {};

  friend std::ostream& operator<<(std::ostream& out, const MinMemoryCase& min_memory_case) {
    return out << min_memory_case.name;
  }
};

/// A few of the jobs that `bench/plan_least` generates by the hundred.
class MinMemoryTest : public testing::TestWithParam<MinMemoryCase> {
 protected:
  PlanRequest request() const {
    Job job = model_.job();
    job.lora = GetParam().lora;
    job.frozen_parts = GetParam().frozen_parts;
    return {.model = GetParam().preset,
            .job = job,
            .target = make_target_gpu(GetParam().gpu_gigabytes),
            .limit_gigabytes = std::nullopt,
            .workload = {.worst_batches = {{.shapes = {model_.shape(GetParam().sample)}, .first_sample_id = {}}},
                         .global_batch_size = GetParam().global_batch},
            .constraints = {},
            .with_suggestions = false};
  }

  /// Variations of the plan's config.
  static std::vector<StepConfig> list_other_configs(const Plan& plan) {
    const models::RecomputeBlockCounts total_block_counts{.vision = plan.detail.num_vision_blocks,
                                                          .language = plan.detail.num_language_blocks};
    std::vector<StepConfig> step_configs;
    const auto add_changed = [&](const auto& change) {
      StepConfig step_config = plan.best_estimate.step_config;
      change(step_config);
      if (step_config != plan.best_estimate.step_config) step_configs.push_back(step_config);
    };
    for (const models::RecomputeBlockCounts blocks :
         {total_block_counts,
          models::RecomputeBlockCounts{},
          {total_block_counts.vision, 0},
          {0, total_block_counts.language},
          {total_block_counts.vision / 2, total_block_counts.language - 1}}) {
      add_changed([&](StepConfig& step_config) { step_config.recompute = blocks; });
    }
    for (const int64_t tiles : {0, 1, 2, 5}) {
      add_changed([&](StepConfig& step_config) { step_config.vision_tiles_per_pass = tiles; });
    }
    for (const int64_t rows : {1, 16, 128, 1024}) {
      add_changed([&](StepConfig& step_config) { step_config.loss_chunk_rows = rows; });
    }
    add_changed([](StepConfig& step_config) { step_config.micro_batch_size = 2; });
    add_changed([](StepConfig& step_config) { step_config = {}; });
    return step_configs;
  }

  const PresetFolder model_{GetParam().preset};
};

/// The allocator reserves whole segments, which other passes fill in another order. Reserved bytes
/// are minimized up to this tolerance.
constexpr double kSegmentTolerance = 0.015;

TEST_P(MinMemoryTest, NoOtherConfigNeedsLess) {
  const PlanRequest plan_request = request();
  const Plan plan = make_plan(plan_request);
  ASSERT_FALSE(plan.fits);
  PlanEvaluator evaluator({.job = plan_request.job,
                           .target = plan_request.target,
                           .workload = plan_request.workload,
                           .limit_bytes = plan.limit.limit_bytes});
  for (const StepConfig& step_config : list_other_configs(plan)) {
    const auto bytes =
        evaluator.measure_reserved_bytes(plan_request.job, step_config, plan_request.workload.worst_batches);
    EXPECT_GE(static_cast<double>(bytes.value_or(kUnlimited)),
              (1 - kSegmentTolerance) * static_cast<double>(plan.best_estimate.peaks.reserved_bytes))
        << "micro-batch " << step_config.micro_batch_size << ", recomputing " << step_config.recompute.vision << "+"
        << step_config.recompute.language << ", " << step_config.vision_tiles_per_pass << " tiles a pass, "
        << step_config.loss_chunk_rows << " rows";
  }
  for (const auto& estimate : plan.alternatives) {
    EXPECT_GE(estimate.peaks.reserved_bytes, plan.best_estimate.peaks.reserved_bytes) << "in the table";
    EXPECT_FALSE(estimate.fits);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, MinMemoryTest,
    testing::Values(
        MinMemoryCase{
            "FourPicturesOfNativeResolution", "qwen2-vl-2b", 5, {.images = 4}, 4, nn::LoraSettings{.rank = 16}},
        MinMemoryCase{"ManyTiles", "smolvlm-256m", 2, {.images = 3, .image_height = 256}, 2, {}},
        MinMemoryCase{"AFrozenTower", "smolvlm-256m", 2, {.images = 3}, 2, {}, {.vision_tower = true}},
        MinMemoryCase{"LongAnswers",
                      "smolvlm-500m",
                      2,
                      {.images = 1, .text_tokens = 3000, .label_tokens = 2500},
                      2,
                      nn::LoraSettings{.rank = 8}},
        MinMemoryCase{"TextOnly", "smolvlm-256m", 2, {.images = 0, .text_tokens = 2000}, 2, {}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::planner
