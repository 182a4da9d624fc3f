#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "planner/user_error.h"
#include "train/loop/evaluated_run.h"

namespace vlmtrain::train {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

using BestMetricTest = PeriodicEvaluationTest;

/// The loss alone ranks models whose answers are all wrong.
TEST_F(BestMetricTest, TheLossDecidesBetweenEqualValues) {
  config_.training.learning_rate = 1e-2;
  config_.evaluation.best_metric = BestMetric::kExactMatch;
  config_.evaluation.early_stopping_patience = 2;
  config_.training.max_steps = 5;
  const auto summary = run_training();
  EXPECT_THAT(list_evaluated_steps(), SizeIs(5)) << "a loss that falls is an improvement";
  double min_loss = std::numeric_limits<double>::infinity();
  int64_t best = 0;
  for (const auto& line : read_json_lines("metrics.jsonl")) {
    ASSERT_EQ(line["evaluation"]["exact_match"], 0);
    const double loss = line["evaluation"]["loss"];
    EXPECT_EQ(line["evaluation"]["is_best"], loss < min_loss);
    if (loss < min_loss) best = line["step"];
    min_loss = std::min(min_loss, loss);
  }
  EXPECT_GT(best, 1);
  EXPECT_EQ(summary.best_step, best);
  EXPECT_EQ(summary.best_metric_value, 0);
  EXPECT_EQ(read_state(best)["evaluation"]["best_loss"], min_loss);
  // Resumes with the checkpoint's best result: an unchanged model is no better.
  config_.training.max_steps = 6;
  config_.training.learning_rate = 0;
  config_.resume_policy = ResumePolicy::kChanged;
  EXPECT_EQ(run_training().best_step, best);
}

TEST_F(BestMetricTest, AMetricOfAnswersMayBeTheBest) {
  config_.training.learning_rate = 1e-2;
  config_.training.max_steps = 5;
  config_.evaluation.early_stopping_patience = 5;
  for (const evaluation::Metric metric : {evaluation::Metric::kCer, evaluation::Metric::kAnls}) {
    const std::string name = evaluation::to_string(metric);
    SCOPED_TRACE(name);
    config_.evaluation.metrics.metrics = {metric};
    config_.evaluation.best_metric = metric;
    config_.output.dir = folder() / name;
    const auto summary = run_training();
    std::optional<std::pair<double, double>> best;  // the value, lower if better, and the loss
    for (const auto& line : read_json_lines("metrics.jsonl")) {
      const double value = line["evaluation"]["metrics"][name];
      const std::pair result{metric == evaluation::Metric::kCer ? value : -value,
                             line["evaluation"]["loss"].get<double>()};
      EXPECT_EQ(line["evaluation"]["is_best"], !best || result < *best) << line;
      best = best ? std::min(*best, result) : result;
    }
    ASSERT_TRUE(best);
    EXPECT_EQ(summary.best_metric, name);
    EXPECT_EQ(summary.best_metric_value, metric == evaluation::Metric::kCer ? best->first : -best->first);
  }
}

TEST_F(BestMetricTest, AMetricThatAppliesToNoAnswerStopsTheRunEarly) {
  config_.evaluation.metrics.metrics = {evaluation::Metric::kBoxIou};
  config_.evaluation.best_metric = evaluation::Metric::kBoxIou;
  config_.evaluation.early_stopping_patience = 2;
  EXPECT_THAT(planner::get_usage_error([this] { run_training(); }, ExitCode::kFailed),
              HasSubstr("training.best_metric=box_iou"));
}

}  // namespace
}  // namespace vlmtrain::train
