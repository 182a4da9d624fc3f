#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/train/evaluate.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::train {
namespace {

TEST(EvaluationTest, IsOneLineOfJson) {
  Evaluation evaluation;
  evaluation.loss = 0.25;
  evaluation.label_tokens = 12;
  evaluation.total = {.samples = 4, .exact = 3};
  evaluation.by_task["count"] = {.samples = 2, .exact = 1};
  evaluation.skipped = 1;
  evaluation.closed.add("yes", "Yes");
  evaluation.open.add("left lung", "left side");
  EXPECT_EQ(evaluation.to_json(), R"({"loss":0.25,"label_tokens":12,"samples":4,"exact_match":0.75,)"
                                  R"("closed":{"samples":1,"accuracy":1.0},"open":{"samples":1,"exact_match":0.0,)"
                                  R"("recall":0.5,"precision":0.5,"f1":0.5},"skipped":1,)"
                                  R"("by_task":{"count":{"samples":2,"exact_match":0.5}}})");
}

TEST(EvaluationTest, NoSampleIsNoMatch) {
  EXPECT_EQ(TaskScore{}.exact_match(), 0);
  EXPECT_EQ(nlohmann::json::parse(Evaluation{}.to_json())["by_task"].dump(), "{}");
}

TEST(TrainingSummaryTest, ARunThatDidNoStepHasNoLoss) {
  TrainingSummary summary;
  summary.steps = 3;
  summary.checkpoint = "run/checkpoints/step-3";
  EXPECT_EQ(summary.to_json(),
            R"({"stopped":false,"steps":3,"last_loss":null,"checkpoint":"run/checkpoints/step-3",)"
            R"("reserved_peak_bytes":0,"planned_peak_bytes":null,"skipped_steps":0,"callback_seconds":0.0})");
  summary.last_loss = 1.5;
  EXPECT_EQ(nlohmann::json::parse(summary.to_json())["last_loss"], 1.5);
}

TEST(TrainingSummaryTest, ARunOnAGpuTellsItsPeakBesideThePlannedOne) {
  TrainingSummary summary;
  summary.reserved_peak_bytes = 5'000'000'000;
  summary.planned_peak_bytes = 5'100'000'000;
  const auto json = nlohmann::json::parse(summary.to_json());
  EXPECT_EQ(json["reserved_peak_bytes"], 5'000'000'000);
  EXPECT_EQ(json["planned_peak_bytes"], 5'100'000'000);
  EXPECT_TRUE(json["checkpoint"].is_null()) << "on a virtual card there is none";
}

}  // namespace
}  // namespace vlmtrain::train
