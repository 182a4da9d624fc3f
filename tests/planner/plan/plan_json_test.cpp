#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {
namespace {

/// An artificial plan: 12 samples on two ranks.
Plan make_example_plan() {
  Plan plan;
  plan.model = "tiny";
  plan.workload = {.worst_batches = {}, .global_batch_size = 12, .world_size = 2};
  plan.worst_batch = {.shapes = {{.tokens = 90, .num_images = 2, .num_videos = 1, .video_frames = 16}},
                      .first_sample_id = "largest"};
  plan.best_estimate.step_config.micro_batch_size = 3;
  plan.best_estimate.peaks = {.allocated_bytes = 700, .reserved_bytes = 1000};
  plan.limit.context_bytes = 20;
  plan.limit.communication_bytes = 3;
  StepEstimate other = plan.best_estimate;
  other.step_config.micro_batch_size = 2;
  plan.alternatives = {plan.best_estimate, other};
  return plan;
}

TEST(PlanJsonTest, EachAlternativeHasItsAccumulationSteps) {
  const auto json = make_example_plan().to_json();
  EXPECT_EQ(json["micro_batch_size"], 3);
  EXPECT_EQ(json["gradient_accumulation_steps"], 2);
  EXPECT_EQ(json["alternatives"][0]["gradient_accumulation_steps"], 2);
  EXPECT_EQ(json["alternatives"][1]["gradient_accumulation_steps"], 3);
  EXPECT_EQ(json["world_size"], 2);
}

TEST(PlanJsonTest, TotalsIncludeTheOverhead) {
  const auto json = make_example_plan().to_json();
  EXPECT_EQ(json["memory"]["total_bytes"], 1023);
  EXPECT_EQ(json["memory"]["fragmentation_bytes"], 300);
  EXPECT_EQ(json["alternatives"][1]["total_bytes"], 1023);
  EXPECT_EQ(json["images_per_sample"], 2);
  EXPECT_EQ(json["videos_per_sample"], 1);
}

TEST(PlanJsonTest, SuggestionsHaveTextAndArguments) {
  Plan unfit_plan = make_example_plan();
  unfit_plan.suggestions = {{.arguments = {"lora.rank=8", "model.quantization=nf4"},
                             .note = "trains adapters",
                             .makes_plan_fit = true,
                             .total_bytes = 77},
                            {.arguments = {}, .note = "a GPU with 80 GB or more"}};
  const auto suggestions = unfit_plan.to_json()["suggestions"];
  ASSERT_EQ(suggestions.size(), 2U);
  EXPECT_EQ(suggestions[0]["text"], "lora.rank=8 model.quantization=nf4: trains adapters");
  EXPECT_EQ(suggestions[0]["arguments"], (std::vector<std::string>{"lora.rank=8", "model.quantization=nf4"}));
  EXPECT_EQ(suggestions[0]["makes_it_fit"], true);
  EXPECT_EQ(suggestions[0]["total_bytes"], 77);
  EXPECT_EQ(suggestions[1]["text"], "a GPU with 80 GB or more");
  EXPECT_TRUE(suggestions[1]["total_bytes"].is_null()) << "not dry-run";
}

}  // namespace
}  // namespace vlmtrain::planner
