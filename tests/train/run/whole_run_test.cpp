#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "train/data_check/run_records.h"
#include "train/run/callbacks.h"
#include "train/small_run.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// Runs without errors, from their data to the last checkpoint.
class WholeRunTest : public SmallRunTest {
 protected:
  /// Returns the results of a step without measurements.
  static std::string format_numbers(const nlohmann::json& step) {
    return nlohmann::json{step["loss"], step["grad_norm"], step["learning_rate"], step["epoch"], step["skipped_steps"]}
        .dump();
  }

  /// Configures two epochs of single samples on a copy of the images, without bad samples. Returns
  /// its folder.
  fs::path use_two_epochs_of_single_samples() {
    const fs::path images = folder() / "images";
    fs::copy(config_.data.image_root, images);
    config_.data.image_root = images;
    config_.data.on_bad_sample = data::BadSamplePolicy::kSkip;
    config_.training.max_steps = {};
    config_.training.epochs = 2;
    config_.training.global_batch_size = 1;
    config_.training.micro_batch_size = 1;
    return images;
  }

  /// Simulates an end after the first step by removing later results, and resumes.
  void expect_same_numbers_after_resume() {
    config_.output.save_steps = 1;
    config_.output.save_total_limit = kSteps;
    run_training();
    const auto uninterrupted = read_json_lines("metrics.jsonl");
    ASSERT_THAT(uninterrupted, SizeIs(kSteps));
    for (int64_t step = 2; step <= kSteps; ++step) {
      fs::remove_all(run_folder() / "checkpoints" / fmt::format("step-{}", step));
    }
    const auto summary = run_training();
    EXPECT_EQ(summary.steps, kSteps);
    const auto resumed = read_json_lines("metrics.jsonl");
    ASSERT_THAT(resumed, SizeIs(kSteps));
    for (size_t i = 0; i < resumed.size(); ++i) {
      EXPECT_EQ(format_numbers(resumed[i]), format_numbers(uninterrupted[i])) << "step " << i + 1;
      EXPECT_EQ(resumed[i]["step"], i + 1);
    }
    EXPECT_EQ(read_json_lines("events.jsonl").back()["kind"], "checkpoint");
    EXPECT_THAT(read_text(run_folder() / "events.jsonl"), HasSubstr("resuming after step 1 from"));
  }
};

TEST_F(WholeRunTest, ReportsItsResults) {
  config_.output.log_samples = true;
  const auto summary = run_training();
  EXPECT_FALSE(summary.was_stopped_by_signal);
  EXPECT_EQ(summary.steps, kSteps);
  EXPECT_EQ(summary.num_skipped_steps, 0);
  EXPECT_EQ(summary.newest_checkpoint, run_folder() / "checkpoints/step-3");
  EXPECT_THAT(checkpoints(), ElementsAre("step-3"));
  const auto steps = read_json_lines("metrics.jsonl");
  ASSERT_THAT(steps, SizeIs(kSteps));
  EXPECT_EQ(steps.back()["loss"], summary.last_loss);
  EXPECT_LT(steps.back()["loss"], steps.front()["loss"]);
  int64_t tokens = 0;
  for (const auto& sample : parity::Case("mixed_batch").samples()) tokens += sample.tokens();
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(steps[i]["step"], i + 1);
    EXPECT_EQ(steps[i]["total_steps"], kSteps);
    EXPECT_EQ(steps[i]["epoch"], i + 1);
    EXPECT_EQ(steps[i]["samples"], 4);
    EXPECT_EQ(steps[i]["micro_batch_sizes"], std::vector<int64_t>{4});
    EXPECT_EQ(steps[i]["images"], 4);
    EXPECT_EQ(steps[i]["tokens"], tokens);
    EXPECT_EQ(steps[i]["skipped"], false);
    EXPECT_GT(steps[i]["step_seconds"], steps[i]["data_wait_seconds"]);
  }
  const auto samples = read_json_lines("samples.jsonl");
  ASSERT_THAT(samples, SizeIs(kSteps));
  for (const auto& step : samples) EXPECT_THAT(step["ids"].get<std::vector<std::string>>(), SizeIs(4));
  const auto plan = nlohmann::json::parse(read_text(run_folder() / "plan.json"));
  EXPECT_EQ(plan["measured"]["steps"], kSteps) << "what was planned stands beside what was measured";
}

TEST_F(WholeRunTest, WritesSamplePredictions) {
  config_.output.num_sample_predictions = 4;
  config_.output.max_prediction_time_share = 1;
  config_.training.max_steps = 1;
  run_training();
  const auto answers = read_json_lines("predictions.jsonl");
  const std::map<std::string, std::pair<std::string, size_t>> expected{
      {"words", {"Is there a fracture?", 0}},
      {"square", {"What has changed?", 1}},
      {"row", {"How many?", 1}},
      {"two", {"Say more.", 2}},
  };
  ASSERT_THAT(answers, SizeIs(expected.size()));
  for (const auto& answer : answers) {
    SCOPED_TRACE(answer["id"].dump());
    const auto& [question, images] = expected.at(answer["id"]);
    EXPECT_EQ(answer["step"], 1);
    EXPECT_EQ(answer["question"], question);
    EXPECT_THAT(answer["images"], SizeIs(images));
    EXPECT_NE(answer["expected"], "");
  }
}

TEST_F(WholeRunTest, ResumesToTheSameNumbers) {
  expect_same_numbers_after_resume();
}

TEST_F(WholeRunTest, FinishedRunIsUnchanged) {
  run_training();
  const std::string events = read_text(run_folder() / "events.jsonl");
  EXPECT_THAT(events, Not(HasSubstr("resuming after")));
  EXPECT_EQ(run_training().steps, kSteps);
  const auto events_after = read_json_lines("events.jsonl");
  EXPECT_EQ(std::ranges::count(events_after, "checkpoint", [](const auto& event) { return event["kind"]; }), 1)
      << "it is not saved again";
  EXPECT_THAT(read_json_lines("metrics.jsonl"), SizeIs(kSteps));
}

TEST_F(WholeRunTest, AdapterResumesToTheSameNumbers) {
  config_.lora.rank = 2;
  config_.training.learning_rate = 1e-2;
  expect_same_numbers_after_resume();
}

TEST_F(WholeRunTest, EachUsableSampleIsUsedOncePerEpoch) {
  const fs::path image_file = use_two_epochs_of_single_samples() / "small.png";
  fs::resize_file(image_file, fs::file_size(image_file) / 2);  // noticed when it is decoded
  config_.data.check_at_start = false;
  config_.output.log_samples = true;
  EXPECT_EQ(run_training().steps, 6);
  std::map<std::string, int64_t> times;
  for (const auto& step : read_json_lines("samples.jsonl")) {
    for (const auto& id : step["ids"]) ++times[id];
  }
  EXPECT_EQ(times, (std::map<std::string, int64_t>{{"words", 2}, {"row", 2}, {"two", 2}}));
  EXPECT_EQ(read_json_lines("metrics.jsonl").back()["epoch"], 2);
}

TEST_F(WholeRunTest, TotalStepsCountUsableSamples) {
  fs::remove(use_two_epochs_of_single_samples() / "small.png");
  EXPECT_EQ(run_training().steps, 6);
  for (const auto& step : read_json_lines("metrics.jsonl")) EXPECT_EQ(step["total_steps"], 6);
}

TEST_F(WholeRunTest, LearningRatesScaleWithStepTokens) {
  int64_t tokens = 0;
  for (const auto& sample : parity::Case("mixed_batch").samples()) tokens += sample.tokens();
  config_.training.batch_and_tasks.global_batch_tokens = 4 * tokens;
  config_.training.batch_and_tasks.batch_scaling = engine::BatchScaling::kLinear;
  config_.training.warmup_ratio = 0;
  config_.training.lr_scheduler = engine::ScheduleShape::kConstant;
  config_.training.learning_rate = 1e-3;
  config_.training.max_steps = 1;
  run_training();
  EXPECT_NEAR(read_json_lines("metrics.jsonl").front()["learning_rate"], 1e-3 / 4, 1e-9);
}

/// A checkpoint without the projector's weights.
TEST_F(WholeRunTest, LogsAllowedMissingWeights) {
  const fs::path base = folder() / "base";
  fs::copy(config_.model.path, base);
  io::NamedTensors kept_tensors;
  {
    const io::SafetensorsFile weights(base / "model.safetensors");
    for (const auto& name : weights.names()) {
      if (name.find("connector") == std::string::npos) kept_tensors.emplace_back(name, weights.tensor(name).clone());
    }
  }
  io::write_safetensors(base / "model.safetensors", kept_tensors);
  config_.model.path = base;
  EXPECT_THAT(planner::get_usage_error([this] { run_training(); }, ExitCode::kBadData), HasSubstr("connector"));
  config_.model.allow_missing = {"connector"};
  config_.output.dir = folder() / "allowed";
  config_.training.max_steps = 1;
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), HasSubstr("are initialized randomly (model.allow_missing)"));
  run_training();  // its own checkpoint lacks nothing
}

TEST_F(WholeRunTest, WritesTheReportAtIntervals) {
  run_training();
  const fs::path file = run_folder() / "report.html";
  ASSERT_TRUE(fs::remove(file)) << "it is written";
  HtmlReportCallback page(run_folder());
  page.on_step({});
  EXPECT_TRUE(fs::remove(file));
  page.on_step({});
  EXPECT_FALSE(fs::exists(file)) << "ten seconds are not over";
  page.on_end(/*succeeded=*/true);
  EXPECT_TRUE(fs::exists(file));
}

TEST(SampleEvenlyTest, TakesOneSampleOfEachRange) {
  io::InMemoryRecords records(std::vector<io::Record>(10));
  const auto indices = select_evenly_spaced_indices(records, 5);
  ASSERT_THAT(indices, SizeIs(5));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(indices[static_cast<size_t>(i)] / 2, i);
  EXPECT_THAT(select_evenly_spaced_indices(records, 20), SizeIs(10));
  EXPECT_THAT(select_evenly_spaced_indices(io::InMemoryRecords(), 5), IsEmpty());
  for (int64_t i = 0; i < records.size(); ++i) records[i].problem = "has no answer";
  EXPECT_THAT(select_evenly_spaced_indices(records, 5), IsEmpty());
}

}  // namespace

}  // namespace vlmtrain::train
