#include "train/host_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "planner/user_error.h"
#include "train/plan_or_split.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {
namespace {

constexpr data::SampleShape kShape{.tokens = 40, .label_tokens = 10};

Config config() {
  Config config;
  config.model.path = parity::Case("mixed_batch").checkpoint();
  config.training.global_batch_size = 4;
  config.training.precision = engine::Precision::kFp32;
  return config;
}

HostRun run_of(const Config& config, const data::SampleShape& shape, const std::filesystem::path& folder,
               const std::optional<KeptChoices>& kept = {}) {
  planner::Workload workload{.candidates = {{.shapes = {shape}, .first_id = "one"}}, .global_batch_size = 4};
  static const RunRanks alone({});
  return {config, std::move(workload), {}, /*making_bytes=*/0, job_of(config), alone, folder, kept};
}

/// A shape that no sample can have: its rehearsal fails, and not for lack of memory.
TEST(HostRunTest, APlanThatFailsLeavesCautiousChoicesAndTheGuard) {
  const parity::TemporaryFolder folder;
  data::SampleShape broken = kShape;
  broken.label_tokens = 2 * broken.tokens;
  HostRun run = run_of(config(), broken, folder.path());
  EXPECT_EQ(run.fixed().choices.micro_batch_size, 1);
  EXPECT_GE(run.fixed().choices.recompute.language, 2);
  EXPECT_EQ(run.fixed().choices.vision_tiles_per_pass, 1);
  EXPECT_GT(run.fixed().limit_bytes, 0);
  EXPECT_NE(run.guard(), nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "plan.json"));
  EXPECT_NO_THROW(run.compare(1));
}

TEST(HostRunTest, APlanThatFailsKeepsWhatIsFixed) {
  const parity::TemporaryFolder folder;
  data::SampleShape broken = kShape;
  broken.label_tokens = 2 * broken.tokens;
  Config fixed = config();
  fixed.training.micro_batch_size = 2;
  fixed.memory.recompute.text = "none";
  fixed.memory.loss_chunk_rows = 77;
  const auto choices = run_of(fixed, broken, folder.path()).fixed().choices;
  EXPECT_EQ(choices.micro_batch_size, 2);
  EXPECT_EQ(choices.recompute, models::RecomputeBlocks{});
  EXPECT_EQ(choices.loss_chunk_rows, 77);

  const KeptChoices kept{.choices = {.micro_batch_size = 4, .recompute = {1, 0}}, .limit_bytes = 1'000'000};
  EXPECT_EQ(run_of(config(), broken, folder.path(), kept).fixed().choices, kept.choices);
}

TEST(HostRunTest, APlanThatIsMadeIsWritten) {
  const parity::TemporaryFolder folder;
  const HostRun run = run_of(config(), kShape, folder.path());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "plan.json"));
  EXPECT_EQ(run.fixed().choices.micro_batch_size, 4);
}

TEST(HostRunTest, SaysWhatItsPlanLeavesOfTheLimit) {
  const parity::TemporaryFolder folder;
  Config limited = config();
  limited.memory.limit_gb = 4;
  const HostRun run = run_of(limited, kShape, folder.path());
  EXPECT_EQ(run.left_bytes(), 4'000'000'000 - 200'000'000 - run.planned_bytes()) << "less the margin of 5 %";
  data::SampleShape broken = kShape;
  broken.label_tokens = 2 * broken.tokens;
  EXPECT_EQ(run_of(limited, broken, folder.path()).left_bytes(), 0) << "nobody knows";
}

TEST(HostRunTest, ARunGoesOnWithWhatItHad) {
  const parity::TemporaryFolder folder;
  const data::SampleShape shape{.tokens = 40,
                                .label_tokens = 10,
                                .image_tokens = 8,
                                .images = 1,
                                .pixel_rows = 2,
                                .row = {.height = 32, .width = 32}};
  const KeptChoices kept{.choices = {.micro_batch_size = 2,
                                     .recompute = {.vision = 1, .language = 0},
                                     .vision_tiles_per_pass = 1,
                                     .loss_chunk_rows = 77},
                         .limit_bytes = 500'000'000};
  EXPECT_EQ(run_of(config(), shape, folder.path(), kept).fixed().choices, kept.choices);
  EXPECT_EQ(run_of(config(), shape, folder.path(), kept).fixed().limit_bytes, kept.limit_bytes);
  Config fixed = config();
  fixed.memory.vision_tiles_per_pass = 2;
  fixed.memory.loss_chunk_rows = 33;
  const auto choices = run_of(fixed, shape, folder.path(), kept).fixed().choices;
  EXPECT_EQ(choices.vision_tiles_per_pass, 2) << "what the configuration says goes first";
  EXPECT_EQ(choices.loss_chunk_rows, 33);
}

TEST(HostRunTest, WhatDoesNotFitSaysWhatThereIs) {
  const parity::TemporaryFolder folder;
  Config small = config();
  small.memory.limit_gb = 0.05;
  EXPECT_THAT(planner::message_of([&] { run_of(small, kShape, folder.path()); }, ExitCode::kDoesNotFit),
              testing::AllOf(
                  testing::HasSubstr("does not fit in host memory"),
                  testing::HasSubstr("this process may have 0.05 GB (memory.limit_gb), of which 5 % are kept free")));
}

struct FakePlan {
  bool fits;
  int64_t micro_batch_size;
};

/// What fits is a single sample.
TEST(PlanOrSplitTest, AsksForSingleSamplesOnceWhereSplitsAreAllowed) {
  std::vector<std::pair<int64_t, bool>> asked;
  const auto make = [&](const planner::HostPlanRequest& request) {
    asked.emplace_back(*request.fixed.micro_batch_size, request.with_remedies);
    return FakePlan{*request.fixed.micro_batch_size == 1, *request.fixed.micro_batch_size};
  };
  planner::HostPlanRequest request;
  request.fixed.micro_batch_size = 4;
  const auto refused = plan_or_split(request, /*allow_splits=*/false, make);
  EXPECT_FALSE(refused.plan.fits);
  EXPECT_FALSE(refused.may_not_fit);
  const auto split = plan_or_split(request, /*allow_splits=*/true, make);
  EXPECT_TRUE(split.plan.fits);
  EXPECT_EQ(split.may_not_fit, 4);
  request.with_remedies = false;
  plan_or_split(request, /*allow_splits=*/false, make);
  EXPECT_EQ(asked, (std::vector<std::pair<int64_t, bool>>{{4, true}, {4, false}, {1, true}, {4, false}}));
}

}  // namespace
}  // namespace vlmtrain::train
