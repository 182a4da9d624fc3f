#include "train/planning/host_run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "planner/user_error.h"
#include "train/run/rank_group.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

constexpr data::SampleShape kShape{.tokens = 40, .label_tokens = 10};

Config make_config() {
  Config config;
  config.model.path = parity::Case("mixed_batch").checkpoint();
  config.training.global_batch_size = 4;
  config.training.precision = engine::Precision::kFp32;
  return config;
}

HostRunPlan make_run_plan(const Config& config, const data::SampleShape& shape, const std::filesystem::path& folder,
                          const std::optional<SavedPlan>& saved_plan = {}) {
  planner::Workload workload{.worst_batches = {{.shapes = {shape}, .first_sample_id = "one"}}, .global_batch_size = 4};
  static const RankGroup single_rank({});
  return {config, std::move(workload), {}, /*decode_bytes=*/0, make_training_job(config), single_rank,
          folder, saved_plan};
}

/// A shape that no sample can have: its dry run fails, and not for lack of memory.
TEST(HostRunPlanTest, FailedPlanFallsBackToMinMemory) {
  const parity::TemporaryFolder folder;
  data::SampleShape impossible_shape = kShape;
  impossible_shape.label_tokens = 2 * impossible_shape.tokens;
  HostRunPlan run_plan = make_run_plan(make_config(), impossible_shape, folder.path());
  EXPECT_EQ(run_plan.saved_plan().step_config.micro_batch_size, 1);
  EXPECT_GE(run_plan.saved_plan().step_config.recompute.language, 2);
  EXPECT_EQ(run_plan.saved_plan().step_config.vision_tiles_per_pass, 1);
  EXPECT_GT(run_plan.saved_plan().limit_bytes, 0);
  EXPECT_NE(run_plan.make_training_allocation_limit(), nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "plan.json"));
  EXPECT_NO_THROW(run_plan.report_measurements(1));
}

TEST(HostRunPlanTest, FailedPlanKeepsConfiguredSettings) {
  const parity::TemporaryFolder folder;
  data::SampleShape impossible_shape = kShape;
  impossible_shape.label_tokens = 2 * impossible_shape.tokens;
  Config fixed_config = make_config();
  fixed_config.training.micro_batch_size = 2;
  fixed_config.memory.recompute.text = "none";
  fixed_config.memory.loss_chunk_rows = 77;
  const auto step_config = make_run_plan(fixed_config, impossible_shape, folder.path()).saved_plan().step_config;
  EXPECT_EQ(step_config.micro_batch_size, 2);
  EXPECT_EQ(step_config.recompute, models::RecomputeBlockCounts{});
  EXPECT_EQ(step_config.loss_chunk_rows, 77);

  const SavedPlan saved_plan{.step_config = {.micro_batch_size = 4, .recompute = {1, 0}}, .limit_bytes = 1'000'000};
  EXPECT_EQ(make_run_plan(make_config(), impossible_shape, folder.path(), saved_plan).saved_plan().step_config,
            saved_plan.step_config);
}

TEST(HostRunPlanTest, WritesThePlan) {
  const parity::TemporaryFolder folder;
  const HostRunPlan run_plan = make_run_plan(make_config(), kShape, folder.path());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "plan.json"));
  EXPECT_EQ(run_plan.saved_plan().step_config.micro_batch_size, 4);
}

TEST(HostRunPlanTest, ReportsRemainingBytes) {
  const parity::TemporaryFolder folder;
  Config limited_config = make_config();
  limited_config.memory.limit_gb = 4;
  const HostRunPlan run_plan = make_run_plan(limited_config, kShape, folder.path());
  EXPECT_EQ(run_plan.compute_unused_limit_bytes(), 4'000'000'000 - 200'000'000 - run_plan.planned_bytes())
      << "less the margin of 5 %";
  data::SampleShape impossible_shape = kShape;
  impossible_shape.label_tokens = 2 * impossible_shape.tokens;
  EXPECT_EQ(make_run_plan(limited_config, impossible_shape, folder.path()).compute_unused_limit_bytes(), 0)
      << "nobody knows";
}

TEST(HostRunPlanTest, ResumesWithTheSavedPlan) {
  const parity::TemporaryFolder folder;
  const data::SampleShape shape{.tokens = 40,
                                .label_tokens = 10,
                                .image_tokens = 8,
                                .num_images = 1,
                                .pixel_rows = 2,
                                .row = {.height = 32, .width = 32}};
  const SavedPlan saved_plan{.step_config = {.micro_batch_size = 2,
                                             .recompute = {.vision = 1, .language = 0},
                                             .vision_tiles_per_pass = 1,
                                             .loss_chunk_rows = 77},
                             .limit_bytes = 500'000'000};
  EXPECT_EQ(make_run_plan(make_config(), shape, folder.path(), saved_plan).saved_plan().step_config,
            saved_plan.step_config);
  EXPECT_EQ(make_run_plan(make_config(), shape, folder.path(), saved_plan).saved_plan().limit_bytes,
            saved_plan.limit_bytes);
  Config fixed_config = make_config();
  fixed_config.memory.vision_tiles_per_pass = 2;
  fixed_config.memory.loss_chunk_rows = 33;
  const auto step_config = make_run_plan(fixed_config, shape, folder.path(), saved_plan).saved_plan().step_config;
  EXPECT_EQ(step_config.vision_tiles_per_pass, 2) << "what the configuration says goes first";
  EXPECT_EQ(step_config.loss_chunk_rows, 33);
}

TEST(HostRunPlanTest, RefusalNamesTheLimit) {
  const parity::TemporaryFolder folder;
  Config small_config = make_config();
  small_config.memory.limit_gb = 0.05;
  EXPECT_THAT(
      planner::get_usage_error([&] { make_run_plan(small_config, kShape, folder.path()); }, ExitCode::kDoesNotFit),
      testing::AllOf(testing::HasSubstr("does not fit in host memory"),
                     testing::HasSubstr("this process may use 0.05 GB (memory.limit_gb), of which 5 % are kept free")));
}

/// A single sample fits.
TEST(PlanOrSplitTest, PlansSingleSamplesIfSplitsAreAllowed) {
  std::vector<std::pair<int64_t, bool>> requests;
  const auto make = [&](const planner::PlanRequest& request) {
    requests.emplace_back(*request.constraints.micro_batch_size, request.with_suggestions);
    planner::Plan plan;
    plan.constraints = request.constraints;
    plan.fits = *request.constraints.micro_batch_size == 1;
    return plan;
  };
  planner::PlanRequest request;
  request.constraints.micro_batch_size = 4;
  const auto refused = make_plan_with_split_fallback(request, /*allow_splits=*/false, make);
  EXPECT_FALSE(refused.plan.fits);
  EXPECT_FALSE(refused.oversized_micro_batch_size);
  const auto split = make_plan_with_split_fallback(request, /*allow_splits=*/true, make);
  EXPECT_TRUE(split.plan.fits);
  EXPECT_EQ(split.oversized_micro_batch_size, 4);
  EXPECT_EQ(refused.plan.constraints.micro_batch_size, 4);
  EXPECT_FALSE(split.plan.constraints.micro_batch_size) << "errors would name it";
  request.with_suggestions = false;
  make_plan_with_split_fallback(request, /*allow_splits=*/false, make);
  EXPECT_EQ(requests, (std::vector<std::pair<int64_t, bool>>{{4, true}, {4, false}, {1, true}, {4, false}}));
}

}  // namespace

}  // namespace vlmtrain::train
