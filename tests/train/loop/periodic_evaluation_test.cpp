#include "train/loop/periodic_evaluation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "train/loop/evaluated_run.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

/// Parameter: the precision.
class SameAsEvalTest : public PeriodicEvaluationTest, public testing::WithParamInterface<engine::Precision> {};

TEST_P(SameAsEvalTest, StepMetricsEqualThoseOfTheCheckpoint) {
  config_.training.precision = GetParam();
  config_.training.learning_rate = 1e-2;
  config_.memory.vision_tiles_per_pass = 1;
  config_.memory.recompute.text = "all";
  config_.output.save_steps = 1;
  config_.output.save_total_limit = kSteps;
  run_training();
  for (const auto& line : read_json_lines("metrics.jsonl")) {
    const auto& evaluation = line["evaluation"];
    const auto actual =
        evaluate_checkpoint(run_folder() / fmt::format("checkpoints/step-{}", line["step"].get<int64_t>()));
    EXPECT_NEAR(evaluation["loss"].get<double>(), actual.total.loss(), 1e-6);
    EXPECT_EQ(evaluation["exact_match"], actual.total.exact_match());
    EXPECT_EQ(evaluation["label_tokens"], actual.total.num_label_tokens);
    EXPECT_EQ(evaluation["samples"], 4);
  }
}

INSTANTIATE_TEST_SUITE_P(In, SameAsEvalTest, testing::Values(engine::Precision::kFp32, engine::Precision::kBf16),
                         [](const auto& instance) { return engine::to_string(instance.param); });

TEST_F(PeriodicEvaluationTest, EvaluationsDoNotChangeTheWeights) {
  config_.output.save_steps = kSteps;
  run_training();
  ASSERT_THAT(list_evaluated_steps(), SizeIs(kSteps));
  const auto with_evaluations = read_weights(kSteps);
  config_.evaluation.steps = 0;
  config_.output.dir = folder() / "without";
  run_training();
  ASSERT_THAT(list_evaluated_steps(), IsEmpty());
  EXPECT_TRUE(read_weights(kSteps) == with_evaluations);
}

TEST_F(PeriodicEvaluationTest, RunsEveryNStepsAndAtEpochAndRunEnds) {
  config_.training.global_batch_size = config_.training.micro_batch_size.emplace(1);
  config_.training.max_steps = 7;
  config_.evaluation.steps = 3;
  run_training();
  EXPECT_THAT(list_evaluated_steps(), ElementsAre(3, 4, 6, 7));
  config_.evaluation.steps = {};
  config_.output.dir = folder() / "ends";
  run_training();
  EXPECT_THAT(list_evaluated_steps(), ElementsAre(4, 7));
}

TEST_F(PeriodicEvaluationTest, ReportsTasksAndBestStep) {
  config_.training.learning_rate = 1e-2;
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  for (size_t i = 0; i < records.size(); ++i) records[i]["task"] = i < 1 ? "one" : "three";
  const fs::path file = folder() / "tasks.json";
  std::ofstream(file) << records.dump();
  config_.data.eval = file;
  const auto summary = run_training();
  const auto lines = read_json_lines("metrics.jsonl");
  ASSERT_THAT(lines, SizeIs(kSteps));
  double min_loss = std::numeric_limits<double>::infinity();
  for (const auto& line : lines) {
    const auto& evaluation = line["evaluation"];
    const auto& tasks = evaluation["tasks"];
    EXPECT_EQ(tasks["one"]["samples"], 1);
    EXPECT_EQ(tasks["three"]["samples"], 3);
    double sum = 0;
    for (const auto& task : tasks) sum += task["loss"].get<double>() * task["label_tokens"].get<double>();
    EXPECT_NEAR(sum, evaluation["loss"].get<double>() * evaluation["label_tokens"].get<double>(), 1e-9 * sum);
    EXPECT_EQ(evaluation["is_best"], evaluation["loss"] < min_loss);
    EXPECT_GT(evaluation["seconds"], 0);
    EXPECT_EQ(evaluation["batch_size"], 4) << "no more than there are";
    min_loss = std::min(min_loss, evaluation["loss"].get<double>());
  }
  EXPECT_EQ(summary.best_metric_value, min_loss);
  EXPECT_EQ(summary.best_metric, "loss");
  EXPECT_EQ(summary.last_evaluation->total.loss, lines.back()["evaluation"]["loss"]);
  EXPECT_EQ(nlohmann::json::parse(summary.to_json())["last_evaluation"], lines.back()["evaluation"]);
}

TEST_F(PeriodicEvaluationTest, BestCheckpointIsKeptAndSelected) {
  disable_learning();
  config_.output.save_steps = 2;
  config_.output.save_total_limit = 1;
  const auto summary = run_training();
  EXPECT_EQ(summary.best_step, 1) << "none after it is better";
  EXPECT_THAT(checkpoints(), UnorderedElementsAre("step-1", "step-9", "best"));
  const auto link = run_folder() / "checkpoints/best";
  EXPECT_EQ(fs::read_symlink(link), "step-1");
  EXPECT_EQ(summary.best_checkpoint, run_folder() / "checkpoints/step-1");
  EXPECT_EQ(read_state(9)["evaluation"]["best_step"], 1);
  EXPECT_EQ(read_state(9)["evaluation"]["without_improvement"], 8);
  const CapturedLog log;
  EXPECT_EQ(resolve_checkpoint(run_folder()), run_folder() / "checkpoints/step-1");
  EXPECT_THAT(log.text(), HasSubstr("using its best checkpoint"));
  EXPECT_EQ(find_newest_checkpoint(run_folder())->filename(), "step-9");
}

TEST_F(PeriodicEvaluationTest, WithoutKeepBestTheBestIsNotKept) {
  disable_learning();
  config_.output.save_steps = 2;
  config_.output.save_total_limit = 1;
  config_.output.keep_best = false;
  const auto summary = run_training();
  EXPECT_THAT(checkpoints(), ElementsAre("step-9"));
  EXPECT_EQ(summary.best_step, 1);
  EXPECT_EQ(summary.best_checkpoint, std::nullopt);
  EXPECT_EQ(resolve_checkpoint(run_folder()), run_folder() / "checkpoints/step-9");
}

TEST_F(PeriodicEvaluationTest, EarlyStoppingCountSurvivesResuming) {
  disable_learning();
  config_.evaluation.early_stopping_patience = 4;
  config_.output.save_steps = 1;
  config_.output.save_total_limit = 9;
  const auto summary = run_training();
  EXPECT_TRUE(summary.was_stopped_early);
  EXPECT_FALSE(summary.was_stopped_by_signal);
  EXPECT_EQ(summary.steps, 5) << "the first was the best";
  const auto last = read_json_lines("events.jsonl").back();
  EXPECT_EQ(last["kind"], "stopped");
  EXPECT_THAT(last["message"].get<std::string>(), AllOf(HasSubstr("stopped early after step 5: 4 evaluations in a row"),
                                                        HasSubstr("training.early_stopping_patience")));
  EXPECT_TRUE(run_training().was_stopped_early) << "again: there is nothing left to do";
  EXPECT_THAT(read_json_lines("metrics.jsonl"), SizeIs(5));

  for (const int64_t step : {4, 5}) fs::remove_all(run_folder() / fmt::format("checkpoints/step-{}", step));
  EXPECT_EQ(run_training().steps, 5) << "resumed after step 3 with a count of two";
  config_.evaluation.early_stopping_patience = 6;
  EXPECT_EQ(run_training().steps, 7);
  config_.evaluation.early_stopping_patience = 0;
  EXPECT_EQ(run_training().steps, 9);
}

TEST_F(PeriodicEvaluationTest, NonFiniteValuesAreNeverBest) {
  config_.training.learning_rate = 1e30;
  config_.training.optimizer.max_grad_norm = 0;
  config_.evaluation.early_stopping_patience = 2;
  config_.evaluation.best_metric = BestMetric::kExactMatch;
  for (int start = 0; start < 2; ++start) {
    planner::get_usage_error([this] { run_training(); }, ExitCode::kFailed);
    EXPECT_FALSE(find_best_checkpoint(run_folder()));
  }
}

TEST_F(PeriodicEvaluationTest, AnotherDatasetOrMetricResetsTheBest) {
  disable_learning();
  config_.training.max_steps = 3;
  run_training();
  EXPECT_EQ(read_state(3)["evaluation"]["without_improvement"], 2);
  config_.training.max_steps = 5;
  config_.resume_policy = ResumePolicy::kChanged;
  config_.evaluation.samples = 2;
  const auto summary = run_training();
  EXPECT_EQ(summary.best_step, 4);
  EXPECT_EQ(read_state(5)["evaluation"]["without_improvement"], 1);
  EXPECT_EQ(read_json_lines("metrics.jsonl").back()["evaluation"]["samples"], 2);
}

TEST_F(PeriodicEvaluationTest, BestSurvivesARunWithoutEvaluations) {
  disable_learning();
  config_.training.max_steps = 2;
  config_.output.save_total_limit = 1;
  run_training();
  config_.resume_policy = ResumePolicy::kChanged;
  config_.training.max_steps = 4;
  config_.evaluation.steps = 0;
  run_training();
  EXPECT_TRUE(fs::exists(run_folder() / "checkpoints/step-1"));
  config_.training.max_steps = 6;
  config_.evaluation.steps = 1;
  config_.data.eval = fs::path(config_.data.eval).parent_path() / "." / fs::path(config_.data.eval).filename();
  EXPECT_EQ(run_training().best_step, 1) << "the same file by another spelling";
  EXPECT_TRUE(fs::exists(run_folder() / "checkpoints/step-1"));
}

TEST_F(PeriodicEvaluationTest, MissingBestCheckpointResetsTheBest) {
  disable_learning();
  config_.training.max_steps = 2;
  run_training();
  fs::remove_all(run_folder() / "checkpoints/step-1");
  config_.resume_policy = ResumePolicy::kChanged;
  config_.training.max_steps = 4;
  const CapturedLog log;
  const auto summary = run_training();
  EXPECT_EQ(summary.best_step, 3);
  EXPECT_TRUE(summary.best_checkpoint);
  EXPECT_THAT(log.text(), HasSubstr("step-1: the best checkpoint does not exist"));
}

TEST_F(PeriodicEvaluationTest, RunsAnInterruptedEvaluationOnResume) {
  config_.output.save_steps = 1;
  config_.output.save_total_limit = kSteps;
  run_training();
  const auto uninterrupted = read_json_lines("metrics.jsonl");
  // Simulates a stop: the step's line and checkpoint exist without the evaluation.
  const auto file = run_folder() / "checkpoints/step-3/trainer_state/state.json";
  auto state = read_state(3);
  const auto previous_evaluation = read_state(2)["evaluation"];
  state["evaluation"] = previous_evaluation;
  state["evaluation"]["is_due"] = true;
  std::ofstream(file) << state.dump();
  fs::remove(file.parent_path() / "checksums.json");  // checksums would reveal the edit
  std::string lines;
  for (auto line : uninterrupted) {
    if (line["step"] == 3) line.erase("evaluation");
    lines += line.dump() + "\n";
  }
  std::ofstream(run_folder() / "metrics.jsonl") << lines;

  const auto summary = run_training();
  EXPECT_EQ(summary.steps, kSteps);
  const auto resumed = read_json_lines("metrics.jsonl");
  ASSERT_THAT(resumed, SizeIs(kSteps));
  EXPECT_EQ(resumed.back()["evaluation"]["loss"], uninterrupted.back()["evaluation"]["loss"]);
  EXPECT_EQ(resumed.back()["evaluation"]["is_best"], uninterrupted.back()["evaluation"]["is_best"]);
  EXPECT_EQ(read_state(3)["evaluation"]["is_due"], false);
}

TEST_F(PeriodicEvaluationTest, RejectsADatasetWithoutUsableSamples) {
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  for (auto& record : records) record["image"] = "nowhere.png";
  const fs::path file = folder() / "bad.json";
  std::ofstream(file) << records.dump();
  config_.data.eval = file;
  for (const auto policy : {data::BadSamplePolicy::kSkip, data::BadSamplePolicy::kFail}) {
    config_.data.on_bad_sample = policy;
    EXPECT_THAT(planner::get_usage_error([this] { run_training(); }, ExitCode::kBadData), HasSubstr("bad.json"));
    EXPECT_THAT(read_json_lines("metrics.jsonl"), IsEmpty());
  }
  config_.data.eval = folder() / "not_there.json";
  EXPECT_THAT(planner::get_usage_error([this] { run_training(); }, ExitCode::kBadData), HasSubstr("not_there.json"));
}

TEST_F(PeriodicEvaluationTest, SkipsBadSamplesIfConfigured) {
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  records.back()["image"] = "nowhere.png";
  const fs::path file = folder() / "one_bad.json";
  std::ofstream(file) << records.dump();
  config_.data.eval = file;
  planner::get_usage_error([this] { run_training(); }, ExitCode::kBadData);
  config_.data.on_bad_sample = data::BadSamplePolicy::kSkip;
  run_training();
  EXPECT_EQ(read_json_lines("metrics.jsonl").back()["evaluation"]["samples"], 3);
}

TEST_F(PeriodicEvaluationTest, RejectsContradictorySettings) {
  const auto get_refusal = [this] {
    return planner::get_usage_error([this] { check_config(config_); }, ExitCode::kUsage);
  };
  config_.data.eval.clear();
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("training.eval_steps: is 1"), HasSubstr("data.eval is empty")));
  config_.evaluation.steps = {};
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("training.eval_steps: is auto"), HasSubstr("data.eval is empty")));
  config_.evaluation.steps = 0;
  config_.evaluation.early_stopping_patience = 2;
  EXPECT_THAT(get_refusal(),
              AllOf(HasSubstr("training.early_stopping_patience: is 2"), HasSubstr("training.eval_steps")));
  config_.evaluation.early_stopping_patience = 0;
  config_.evaluation.best_metric = BestMetric::kExactMatch;
  config_.evaluation.generate_answers = false;
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("training.best_metric"), HasSubstr("training.eval_answers")));
  config_.evaluation.best_metric = evaluation::Metric::kAnls;
  EXPECT_THAT(get_refusal(), HasSubstr("training.best_metric: is anls, which needs answers"));
  config_.evaluation.generate_answers = true;
  EXPECT_THAT(get_refusal(), HasSubstr("training.best_metric: is anls, which eval.metrics does not list"));
  config_.evaluation.metrics.metrics = {evaluation::Metric::kAnls};
  EXPECT_NO_THROW(check_config(config_));
  config_.evaluation.best_metric = BestMetric::kDice;
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("training.best_metric: is dice"), HasSubstr("predicts none"),
                                   HasSubstr("training.best_metric=loss")));
}

TEST_F(PeriodicEvaluationTest, MetricsOfAnswersAreInTheMetricsFile) {
  config_.evaluation.metrics.metrics = {evaluation::Metric::kAnls, evaluation::Metric::kCer};
  run_training();
  const auto metrics = read_json_lines("metrics.jsonl").back()["evaluation"]["metrics"];
  EXPECT_EQ(metrics.size(), 2U);
  EXPECT_TRUE(metrics["anls"].is_number());
  EXPECT_TRUE(metrics["cer"].is_number());
}

TEST_F(PeriodicEvaluationTest, NoExactMatchWithoutAnswers) {
  config_.evaluation.generate_answers = false;
  run_training();
  const auto evaluation = read_json_lines("metrics.jsonl").back()["evaluation"];
  EXPECT_TRUE(evaluation["exact_match"].is_null());
  EXPECT_EQ(evaluation["samples"], 4);
}

}  // namespace

}  // namespace vlmtrain::train
