#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/plan_fixture.h"
#include "planner/user_error.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

using nn::MemoryPlacement;
using testing::HasSubstr;

/// Gemma 4 E2B, whose table has 262,144 rows of 35 · 256 features.
constexpr int64_t kTableBytes = int64_t{2} * 262'144 * 35 * 256;

class PerLayerTables : public testing::Test {
 protected:
  PlanRequest request(double gigabytes) const {
    PlanRequest request = make_one_image_request("gemma-4-e2b", model_, gigabytes);
    request.auto_per_layer_tables = true;
    request.job.lora.emplace();
    request.job.quantization = nn::Quantization::kNf4;
    return request;
  }

  const PresetFolder model_{"gemma-4-e2b"};
};

TEST_F(PerLayerTables, AreOnTheHostIfTheyDoNotFitOnTheGpu) {
  const Plan plan = make_plan(request(6));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.job.per_layer_tables, MemoryPlacement::kHost);
  EXPECT_EQ(plan.detail.host_table_bytes, kTableBytes);
  const auto json = plan.to_json();
  EXPECT_EQ(json.at("per_layer_embeddings"), "host");
  EXPECT_EQ(json.at("memory").at("host_bytes"), kTableBytes);
}

TEST_F(PerLayerTables, StayOnTheGpuIfTheHostIsTooSmall) {
  PlanRequest small = request(24);
  small.constraints.recompute.text = "none";
  small.workload.global_batch_size = 8;
  small.host_memory_bytes = 1'000'000'000;
  const Plan plan = make_plan(small);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.job.per_layer_tables, MemoryPlacement::kDevice);
}

TEST_F(PerLayerTables, StayOnAGpuThatHoldsEverything) {
  const Plan plan = make_plan(request(24));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.job.per_layer_tables, MemoryPlacement::kDevice);
  EXPECT_EQ(plan.detail.host_table_bytes, 0);
  EXPECT_EQ(plan.best_estimate.step_config.recompute, models::RecomputeBlockCounts{});
}

TEST_F(PerLayerTables, PeakIsSmallerByTheTable) {
  const auto measure = [&](MemoryPlacement placement) {
    PlanRequest fixed = request(24);
    fixed.auto_per_layer_tables = false;
    fixed.job.per_layer_tables = placement;
    fixed.constraints.recompute.text = "none";
    return make_plan(fixed).peaks().allocated_bytes;
  };
  EXPECT_EQ(measure(MemoryPlacement::kDevice) - measure(MemoryPlacement::kHost), kTableBytes);
}

TEST_F(PerLayerTables, MustBeFrozenOnTheHost) {
  Job job = model_.job();
  EXPECT_FALSE(can_keep_tables_on_host(job)) << "full fine-tuning";
  job.per_layer_tables = MemoryPlacement::kHost;
  EXPECT_THAT(get_usage_error([&] { build_model(job, at::kMeta); }), HasSubstr("only a frozen table"));
  job.frozen_parts.per_layer_embeddings = true;
  EXPECT_TRUE(can_keep_tables_on_host(job));
  job.frozen_parts = {.language_model = true};
  EXPECT_TRUE(can_keep_tables_on_host(job));
  EXPECT_NE(build_model(job, at::kMeta), nullptr);
  job.frozen_parts = {};
  job.lora.emplace();
  EXPECT_TRUE(can_keep_tables_on_host(job));
  job.lora->modules_to_save = {"embed_tokens_per_layer"};
  EXPECT_FALSE(can_keep_tables_on_host(job));
}

TEST_F(PerLayerTables, MustExistOnTheHost) {
  const PresetFolder other("smolvlm-tiny");
  Job job = other.job();
  EXPECT_FALSE(can_keep_tables_on_host(job));
  job.per_layer_tables = MemoryPlacement::kHost;
  EXPECT_THAT(get_usage_error([&] { build_model(job, at::kMeta); }), HasSubstr("has no per-layer embeddings"));
}

}  // namespace
}  // namespace vlmtrain::planner
