#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/run_example.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {
namespace {

using Rows = std::vector<nlohmann::ordered_json>;

nlohmann::json parse_json_line(const StepMetrics& metrics) {
  return nlohmann::json::parse(metrics.to_json_line());
}

StepMetrics make_step(int64_t step, double epoch) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.epoch = epoch;
  metrics.samples = 8;
  metrics.step_seconds = 0.5;
  return metrics;
}

TEST(EpochSummariesTest, ARowAggregatesItsSteps) {
  EpochSummaries epochs;
  StepMetrics first_step = make_step(1, 0.5);
  first_step.loss = 2;
  first_step.label_tokens = 10;
  first_step.tokens = 100;
  first_step.num_oom_splits = 2;
  first_step.num_look_ahead_splits = 3;
  first_step.allocated_peak_bytes = 40;
  first_step.reserved_peak_bytes = 60;
  first_step.host_bytes = 5;
  first_step.host_peak_bytes = 9;
  first_step.tasks["read"] = {.loss = 4, .label_tokens = 4, .samples = 3};
  first_step.evaluation = RunFolder::example_evaluation(0.1);  // in the middle of the epoch
  StepMetrics second_step = make_step(2, 1);
  second_step.loss = 5;
  second_step.label_tokens = 20;
  second_step.tokens = 300;
  second_step.skipped = true;
  second_step.allocated_peak_bytes = 50;
  second_step.reserved_peak_bytes = 60;
  second_step.host_bytes = 7;
  second_step.host_peak_bytes = 9;
  second_step.tasks["read"] = {.loss = 1, .label_tokens = 12, .samples = 5};
  second_step.tasks["count"] = {.loss = 7, .label_tokens = 8, .samples = 3};
  second_step.evaluation = RunFolder::example_evaluation(0.5);
  EXPECT_EQ(epochs.add(parse_json_line(first_step)), Rows());
  const Rows rows = epochs.add(parse_json_line(second_step));
  ASSERT_EQ(rows.size(), 1u);
  auto row = rows[0];
  EXPECT_EQ(row["evaluation"]["loss"], 0.7) << "at the end of the epoch";
  row.erase("evaluation");
  EXPECT_EQ(row.dump(),
            R"({"step":2,"epoch":1,"complete":true,"first_step":1,"last_step":2,"loss":4.0,)"
            R"("tasks":{"count":{"loss":7.0,"samples":3,"label_tokens":8},)"
            R"("read":{"loss":1.75,"samples":8,"label_tokens":16}},)"
            R"("samples":16,"tokens":400,"label_tokens":30,"seconds":1.0,"samples_per_second":16.0,)"
            R"("tokens_per_second":400.0,"oom_splits":2,"forecast_splits":3,"skipped_steps":1,)"
            R"("allocated_peak_bytes":50,"allocated_mean_bytes":45,"reserved_peak_bytes":60,"reserved_mean_bytes":60,)"
            R"("host_peak_bytes":9,"host_mean_bytes":6,"foreseen_splits":3})");
  EXPECT_FALSE(epochs.make_current_epoch_row());
}

TEST(EpochSummariesTest, LinesOfEarlierVersionsCount) {
  EpochSummaries epochs;
  StepMetrics step = make_step(1, 0.5);
  step.num_look_ahead_splits = 3;
  auto earlier_line = parse_json_line(step);
  earlier_line.erase("forecast_splits");
  EXPECT_TRUE(epochs.add(earlier_line).empty());
  step = make_step(2, 1);
  step.num_look_ahead_splits = 4;
  const Rows rows = epochs.add(parse_json_line(step));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["forecast_splits"], 7);
  EXPECT_EQ(rows[0]["foreseen_splits"], 7);
}

TEST(EpochSummariesTest, AStepBelongsToTheEpochInWhichItEnds) {
  EpochSummaries epochs;
  EXPECT_TRUE(epochs.add(parse_json_line(make_step(1, 0.4))).empty());
  EXPECT_TRUE(epochs.add(parse_json_line(make_step(2, 0.8))).empty());
  const Rows first = epochs.add(parse_json_line(make_step(3, 1.2)));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0]["epoch"], 1);
  EXPECT_EQ(first[0]["last_step"], 3);
  EXPECT_FALSE(epochs.make_current_epoch_row()) << "the second epoch has no step";
  EXPECT_TRUE(epochs.add(parse_json_line(make_step(4, 1.6))).empty());
  const auto current = epochs.make_current_epoch_row().value();
  EXPECT_EQ(current["epoch"], 2);
  EXPECT_EQ(current["complete"], false);
  EXPECT_EQ(current["first_step"], 4);
  EXPECT_TRUE(current["evaluation"].is_null());
  const Rows second = epochs.add(parse_json_line(make_step(5, 2 - 1e-12)));
  ASSERT_EQ(second.size(), 1u) << "sums of shares are rounded";
  EXPECT_EQ(second[0]["epoch"], 2);
}

TEST(EpochSummariesTest, AStepThatSpansSeveralEpochsEndsTheLast) {
  EpochSummaries epochs;
  const Rows rows = epochs.add(parse_json_line(make_step(1, 3.5)));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["epoch"], 3);
}

TEST(EpochSummariesTest, AnotherDataSetRestartsTheEpochs) {
  EpochSummaries epochs;
  epochs.add(parse_json_line(make_step(1, 1)));
  epochs.add(parse_json_line(make_step(2, 1.5)));
  EXPECT_EQ(epochs.add(parse_json_line(make_step(3, 0.25))).at(0)["epoch"], 2) << "the previous, incomplete epoch";
  const Rows rows = epochs.add(parse_json_line(make_step(4, 1)));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["epoch"], 1);
  EXPECT_EQ(rows[0]["first_step"], 3);
}

TEST(EpochSummariesTest, DamagedLinesAreIgnored) {
  EpochSummaries epochs;
  for (const char* line : {"{}", R"({"step":1})", R"({"step":"x","epoch":1})", R"({"step":1,"epoch":null})"}) {
    EXPECT_TRUE(epochs.add(nlohmann::json::parse(line)).empty()) << line;
  }
  EXPECT_FALSE(epochs.make_current_epoch_row());
  const Rows rows = epochs.add(nlohmann::json::parse(
      R"({"step":1,"epoch":1,"loss":null,"label_tokens":5,"tasks":{"a":7},"evaluation":[],"step_seconds":null})"));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0]["loss"].is_null());
  EXPECT_TRUE(rows[0]["samples_per_second"].is_null());
  EXPECT_TRUE(rows[0]["evaluation"].is_null());
  EXPECT_TRUE(epochs.add(nlohmann::json::parse(R"({"step":1,"epoch":2})")).empty()) << "a repeated step";
}

}  // namespace
}  // namespace vlmtrain::report
