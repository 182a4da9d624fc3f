#include "train/run/callbacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/captured_log.h"
#include "train/small_run.h"

namespace vlmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kNap{30};

/// A callback that takes some time for each step and event.
class SlowCallback final : public TrainerCallback {
 public:
  SlowCallback(std::string name, std::vector<std::string>& recorded) : name_(std::move(name)), recorded_(recorded) {}

  void on_step(const StepReport& /*step*/) override {
    std::this_thread::sleep_for(kNap);
    recorded_.push_back(name_ + " step");
  }
  void on_event(const report::RunEvent& /*event*/) override {
    std::this_thread::sleep_for(kNap);
    recorded_.push_back(name_ + " event");
  }

 private:
  std::string name_;
  std::vector<std::string>& recorded_;
};

TEST(CallbackListTest, CallsInOrderAndCountsTheTimeOnce) {
  CallbackList callbacks;
  std::vector<std::string> recorded;
  for (const auto* const name : {"first", "second"}) {
    callbacks.add(std::make_unique<SlowCallback>(name, recorded));
  }
  EXPECT_EQ(callbacks.callback_seconds(), 0);
  const auto start = Clock::now();
  callbacks.on_step({});
  callbacks.on_event({});
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT_THAT(recorded, testing::ElementsAre("first step", "second step", "first event", "second event"));
  EXPECT_GE(callbacks.callback_seconds(), 4 * std::chrono::duration<double>(kNap).count());
  EXPECT_LE(callbacks.callback_seconds(), seconds);
}

namespace fs = std::filesystem;
using testing::SizeIs;

/// One sample per step, hence four steps per epoch.
class EpochRowsTest : public SmallRunTest {
 protected:
  EpochRowsTest() {
    config_.training.global_batch_size = 1;
    config_.training.micro_batch_size = 1;
    config_.output.save_steps = 1;
    config_.output.save_total_limit = 99;
    config_.output.write_report = config_.output.write_tensorboard = false;
  }

  /// Returns the rows without measurements.
  std::vector<nlohmann::json> rows() const {
    auto rows = read_json_lines("epochs.jsonl");
    for (auto& row : rows) {
      EXPECT_GT(row["seconds"], 0);
      EXPECT_GT(row["host_mean_bytes"], 1'000'000);
      EXPECT_GE(row["host_peak_bytes"], row["host_mean_bytes"]);
      EXPECT_NEAR(row["tokens_per_second"], static_cast<double>(row["tokens"]) / static_cast<double>(row["seconds"]),
                  1);
      for (const char* key :
           {"seconds", "samples_per_second", "tokens_per_second", "host_peak_bytes", "host_mean_bytes"}) {
        row.erase(key);
      }
      if (row["evaluation"].is_object()) row["evaluation"].erase("seconds");
    }
    return rows;
  }
};

TEST_F(EpochRowsTest, SumTheirStepsAndIncludeTheUnfinishedEpoch) {
  config_.training.max_steps = 6;
  run_training();
  const auto rows = this->rows();
  ASSERT_THAT(rows, SizeIs(2));
  const auto steps = read_json_lines("metrics.jsonl");
  double loss = 0;
  int64_t label_tokens = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < 4; ++i) {
    loss += steps[i]["loss"].get<double>() * steps[i]["label_tokens"].get<double>();
    label_tokens += steps[i]["label_tokens"].get<int64_t>();
    tokens += steps[i]["tokens"].get<int64_t>();
  }
  EXPECT_EQ(rows[0]["epoch"], 1);
  EXPECT_EQ(rows[0]["complete"], true);
  EXPECT_EQ(rows[0]["last_step"], 4);
  EXPECT_EQ(rows[0]["samples"], 4);
  EXPECT_EQ(rows[0]["tokens"], tokens);
  EXPECT_EQ(rows[0]["label_tokens"], label_tokens);
  EXPECT_NEAR(rows[0]["loss"], loss / static_cast<double>(label_tokens), 1e-12);
  EXPECT_EQ(rows[1]["complete"], false);
  EXPECT_EQ(rows[1]["first_step"], 5);
  EXPECT_EQ(rows[1]["last_step"], 6);
}

TEST_F(EpochRowsTest, AreTheSameAfterResumingInMidEpoch) {
  config_.training.max_steps = 8;
  run_training();
  const auto uninterrupted = rows();
  ASSERT_THAT(uninterrupted, SizeIs(2));
  for (const int64_t step : {8, 7, 6}) fs::remove_all(run_folder() / fmt::format("checkpoints/step-{}", step));
  run_training();
  EXPECT_EQ(rows(), uninterrupted) << "rows behind the checkpoint are dropped, steps before it count";
}

TEST_F(EpochRowsTest, AreRebuiltWhateverTheFileHolds) {
  config_.training.max_steps = 6;
  run_training();
  const auto before_resume = rows();
  std::ofstream(run_folder() / "epochs.jsonl", std::ios::app) << R"({"step": "six"})"
                                                              << "\nno JSON\n";
  config_.resume_policy = ResumePolicy::kChanged;
  config_.training.max_steps = 7;
  run_training();
  const auto after_resume = rows();
  ASSERT_THAT(after_resume, SizeIs(2));
  EXPECT_EQ(after_resume.front(), before_resume.front());
}

TEST_F(EpochRowsTest, UnfinishedEpochRowIsReplacedOnResume) {
  config_.training.max_steps = 6;
  run_training();
  fs::remove(run_folder() / "epochs.jsonl");  // as after an older version
  config_.training.max_steps = 8;
  config_.resume_policy = ResumePolicy::kChanged;
  run_training();
  const auto rows = this->rows();
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0]["last_step"], 4);
  EXPECT_EQ(rows[1]["complete"], true);
  EXPECT_EQ(rows[1]["first_step"], 5);
  EXPECT_EQ(rows[1]["last_step"], 8);
}

TEST_F(EpochRowsTest, IncludeAMissedEvaluation) {
  config_.training.max_steps = 4;
  config_.data.eval = config_.data.train.name();
  config_.evaluation.steps = 2;
  config_.evaluation.max_new_tokens = 4;
  run_training();
  const auto uninterrupted = rows();
  ASSERT_THAT(uninterrupted, SizeIs(1));
  EXPECT_EQ(uninterrupted[0]["evaluation"]["loss"], read_json_lines("metrics.jsonl").back()["evaluation"]["loss"]);
  // Simulates a stop: the step's line and checkpoint exist without the evaluation.
  const auto file = run_folder() / "checkpoints/step-4/trainer_state/state.json";
  auto state = nlohmann::json::parse(read_text(file));
  state["evaluation"]["is_due"] = true;
  std::ofstream(file) << state.dump();
  std::filesystem::remove(file.parent_path() / "checksums.json");  // checksums would reveal the edit
  std::string lines;
  for (auto line : read_json_lines("metrics.jsonl")) {
    if (line["step"] == 4) line.erase("evaluation");
    lines += line.dump() + "\n";
  }
  std::ofstream(run_folder() / "metrics.jsonl") << lines;
  run_training();
  const auto resumed = rows();
  ASSERT_THAT(resumed, SizeIs(1));
  EXPECT_EQ(resumed[0]["evaluation"]["loss"], uninterrupted[0]["evaluation"]["loss"]);
}

using testing::HasSubstr;
using testing::Not;

StepReport make_evaluated_step(int64_t step, double loss, bool is_best) {
  StepReport report;
  report.metrics.step = step;
  report.metrics.evaluation = report::EvaluationMetrics{.total = {.loss = loss}, .tasks = {}, .is_best = is_best};
  return report;
}

TEST(ProgressBarTest, LogsEvaluationsWithTheBestOfTheRun) {
  ProgressBarCallback bar(10, /*quiet=*/true);
  bar.on_logged_step(nlohmann::json::parse(make_evaluated_step(2, 1.5, true).metrics.to_json_line()));
  bar.on_logged_step(nlohmann::json::parse(make_evaluated_step(4, 1.75, false).metrics.to_json_line()));
  for (const char* damaged : {"{}", R"({"evaluation":3})", R"({"evaluation":{"is_best":true,"loss":null}})"}) {
    bar.on_logged_step(nlohmann::json::parse(damaged));
  }
  const CapturedLog log;
  StepReport step_without_evaluation;
  step_without_evaluation.metrics.step = 5;
  bar.on_step(step_without_evaluation);
  bar.on_step(make_evaluated_step(6, 1.25, true));
  bar.on_step(make_evaluated_step(8, 1.375, false));
  bar.on_deferred_evaluation(9, *make_evaluated_step(9, 1.125, true).metrics.evaluation);
  EXPECT_THAT(log.text(), HasSubstr("step 9: validation loss 1.125 (best so far, before 1.25 at step 6), 0.0 s"));
  bar.on_step(make_evaluated_step(10, 3.5, true));
  EXPECT_THAT(log.text(), HasSubstr("step 10: validation loss 3.5, 0.0 s")) << "data.eval was changed";
  EXPECT_THAT(log.text(), Not(HasSubstr("step 5")));
  EXPECT_THAT(log.text(), HasSubstr("step 6: validation loss 1.25 (best so far, before 1.5 at step 2), 0.0 s"));
  EXPECT_THAT(log.text(), HasSubstr("step 8: validation loss 1.375 (best 1.25 at step 6), 0.0 s"));
}

TEST(ProgressBarTest, ComparesByDice) {
  const auto make_mask_step = [](int64_t step, double loss, double dice, bool is_best) {
    StepReport report = make_evaluated_step(step, loss, is_best);
    report.metrics.evaluation->total.masks = report::MaskMetrics{.masks = 1, .dice = dice};
    return report;
  };
  ProgressBarCallback bar(10, /*quiet=*/true, {"dice", false});
  bar.on_logged_step(nlohmann::json::parse(make_mask_step(2, 1, 0.5, true).metrics.to_json_line()));
  const CapturedLog log;
  bar.on_step(make_mask_step(4, 2, 0.75, true));
  bar.on_step(make_mask_step(6, 0.5, 0.625, false));
  bar.on_step(make_mask_step(8, 0.5, 0.25, true));
  EXPECT_THAT(log.text(), HasSubstr("validation loss 2, Dice 0.750 (best so far, before 0.500 at step 2)"));
  EXPECT_THAT(log.text(), HasSubstr("validation loss 0.5, Dice 0.625 (best 0.750 at step 4)"));
  EXPECT_THAT(log.text(), HasSubstr("step 8: validation loss 0.5, Dice 0.250, 0.0 s")) << "data.eval was changed";
}

}  // namespace

}  // namespace vlmtrain::train
