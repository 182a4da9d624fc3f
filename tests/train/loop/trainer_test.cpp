#include "vlmtrain/train/trainer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace vlmtrain::train {

namespace {

TEST(TrainingSummaryTest, NoStepsMeansNoLoss) {
  TrainingSummary summary;
  summary.steps = 3;
  summary.newest_checkpoint = "run/checkpoints/step-3";
  EXPECT_EQ(summary.to_json(),
            R"({"stopped":false,"steps":3,"last_loss":null,"checkpoint":"run/checkpoints/step-3",)"
            R"("reserved_peak_bytes":0,"planned_peak_bytes":null,"skipped_steps":0,"callback_seconds":0.0,)"
            R"("save_seconds":0.0,)"
            R"("early_stopped":false,"best_metric":null,"best_step":null,"best_value":null,"best_checkpoint":null,)"
            R"("last_evaluation":null})");
  summary.last_loss = 1.5;
  EXPECT_EQ(nlohmann::json::parse(summary.to_json())["last_loss"], 1.5);
}

TEST(TrainingSummaryTest, ReportsMeasuredAndPlannedPeak) {
  TrainingSummary summary;
  summary.reserved_peak_bytes = 5'000'000'000;
  summary.planned_peak_bytes = 5'100'000'000;
  const auto json = nlohmann::json::parse(summary.to_json());
  EXPECT_EQ(json["reserved_peak_bytes"], 5'000'000'000);
  EXPECT_EQ(json["planned_peak_bytes"], 5'100'000'000);
  EXPECT_TRUE(json["checkpoint"].is_null()) << "a virtual GPU writes no checkpoint";
}

}  // namespace

}  // namespace vlmtrain::train
