#include <map>

#include "e2e/commands/bad_input.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

TEST_F(BadInputTest, RejectsAnEvaluationWithoutUsableSamples) {
  auto all = only_bad("gone", "gone.png", "<image>\nWhat is it?");
  all.erase(all.begin(), all.end() - 1);
  write_records(all);
  expect_error(run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint(), "--device", "cpu", "--answers",
                    "answers.jsonl", "data.on_bad_sample=skip"}),
               4, {"data.eval", "none of the 1 samples can be used", "gone.png"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "answers.jsonl"));
}

/// The weights do not exist: samples are checked before weights are read.
TEST_F(BadInputTest, EvaluationReportsAllBadSamples) {
  auto all = only_bad("gone", "gone.png", "<image>\nWhat is it?");
  all.push_back(all.back());
  all.back()["id"] = "gone-too";
  write_records(all);
  std::filesystem::remove(damaged_checkpoint() / "model.safetensors");
  const std::vector<std::string> command{"eval",     "--config", "train.yaml", "--checkpoint", "damaged",
                                         "--device", "cpu",      "--answers",  "answers.jsonl"};
  expect_error(run(command), 4,
               {"train.json: 2 of 13 samples cannot be used", "sample gone:", "sample gone-too:", "gone.png",
                "data.on_bad_sample=skip"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "answers.jsonl"));
  auto skipping = command;
  skipping.emplace_back("data.on_bad_sample=skip");
  expect_error(run(skipping), 4, {"damaged", "safetensors"});
}

TEST_F(BadInputTest, BadSamplesAreSkippedAndCounted) {
  truncate_image();
  std::string lines;
  for (const auto& record : records()) lines += record.dump() + "\n";
  const auto add = [&](const std::string& id, const nlohmann::json& images, const std::string& question) {
    lines += only_bad(id, images, question).back().dump() + "\n";
  };
  add("cut-off", "cut.jpg", "<image>\nWhat is it?");
  add("gone", "gone.png", "<image>\nWhat is it?");
  add("too-few", "small.png", "<image>\n<image>\nWhat is it?");
  std::string long_question = "Why?";
  for (int i = 0; i < 400; ++i) long_question += " Really?";
  add("too-long", nlohmann::json::array(), long_question);
  lines += "{\"id\": \"broken\", \"conversations\": [\n";
  write_text(folder() / "train.jsonl", lines);

  const Result result = train({"data.train=train.jsonl", "data.on_bad_sample=skip", "data.max_length=1000",
                               "training.max_steps=8", "output.save_steps=3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["samples"], kRecords + 5);
  EXPECT_EQ(ledger["used"], kRecords);
  EXPECT_EQ(ledger["dropped"], 5);
  EXPECT_EQ(ledger["failed"], 0);
  EXPECT_EQ(ledger["not_reached"], 0);

  std::map<std::string, std::string> reasons;
  for (const auto& problem : ledger["problems"]) {
    EXPECT_EQ(problem["status"], "dropped");
    reasons[problem["id"]] = problem["reason"];
    EXPECT_THAT(result.err, HasSubstr(problem["message"].get<std::string>())) << "the log has it too";
    EXPECT_THAT(problem["message"].get<std::string>(), HasSubstr(problem["id"].get<std::string>()));
  }
  EXPECT_EQ(reasons, (std::map<std::string, std::string>{{"cut-off", "unreadable image"},
                                                         {"gone", "unreadable image"},
                                                         {"too-few", "unusable record"},
                                                         {"too-long", "too long"},
                                                         {"train:15", "unusable record"}}));
  int64_t num_counted = 0;
  for (const auto& [reason, count] : ledger["reasons"].items()) num_counted += count.get<int64_t>();
  EXPECT_EQ(num_counted, 5);
  for (const auto& step : step_lines("run/metrics.jsonl")) EXPECT_EQ(step["samples"], 4) << "the global batch is exact";
}

class BadSampleTest : public BadInputTest {
 protected:
  /// Expects that the run stops at the bad sample, names it in message and ledger, and leaves no
  /// incomplete files.
  void expect_stop(const std::string& file, const std::vector<std::string>& messages) const {
    const Result result = train({"data.train=" + file, "data.max_length=1000", "training.max_steps=8"});
    expect_error(result, 4, messages);
    EXPECT_THAT(result.err, HasSubstr("data.on_bad_sample=skip"));
    EXPECT_THAT(result.err, HasSubstr("line "));
    const auto ledger = json_file("run/ledger.json");
    EXPECT_EQ(ledger["failed"], 1);
    EXPECT_EQ(ledger["dropped"], 0);
    EXPECT_EQ(ledger["used"].get<int>() + ledger["not_reached"].get<int>(), kRecords);
    EXPECT_EQ(ledger["problems"][0]["status"], "failed");
    for (const auto& name : entries(folder() / "run")) {
      EXPECT_THAT(
          (std::vector<std::string>{"checkpoints", "config.yaml", "data_check.jsonl", "environment.json",
                                    "epochs.jsonl", "events.jsonl", "ledger.json", "metrics.jsonl", "plan.json",
                                    "run.lock", "predictions.jsonl", "report.html", "samples.jsonl", "tensorboard"}),
          testing::Contains(name));
    }
  }
};

TEST_F(BadSampleTest, TruncatedImage) {
  truncate_image();
  write_records(only_bad("cut-off", "cut.jpg", "<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample cut-off", "images/cut.jpg", "JPEG"});
}

TEST_F(BadSampleTest, MissingImage) {
  write_records(only_bad("gone", "gone.png", "<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample gone", "images/gone.png", "data.image_root"});
}

TEST_F(BadSampleTest, InvalidImage) {
  write_text(folder() / "images/text.png", "not a picture");
  write_records(only_bad("text", "text.png", "<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample text", "images/text.png"});
}

TEST_F(BadSampleTest, TheWrongNumberOfImages) {
  write_records(only_bad("too-few", "small.png", "<image>\n<image>\nWhat is it?"));
  expect_stop("train.json", {"train.json", "sample too-few", "2 <image> placeholders for 1 image"});
}

TEST_F(BadSampleTest, InvalidJsonLine) {
  std::string lines;
  for (const auto& record : records()) lines += record.dump() + "\n";
  write_text(folder() / "train.jsonl", lines + "{\"id\": \"broken\", \"conversations\": [\n");
  expect_stop("train.jsonl", {"train.jsonl", "line 12", "not valid JSON at column"});
}

TEST_F(BadSampleTest, TooLongSample) {
  std::string question = "Why?";
  for (int i = 0; i < 400; ++i) question += " Really?";
  write_records(only_bad("endless", nlohmann::json::array(), question));
  expect_stop("train.json", {"train.json", "sample endless", "data.max_length=1000"});
}

TEST_F(BadInputTest, NoUsableSamples) {
  nlohmann::json all = nlohmann::json::array();
  for (int i = 0; i < 6; ++i) all.push_back(only_bad("gone-" + std::to_string(i), "gone.png", "<image>\nWhat?").back());
  write_records(all);
  expect_error(train({"data.on_bad_sample=skip"}), 4, {"train.json", "none of the 6 samples can be used"});
  EXPECT_EQ(json_file("run/ledger.json")["dropped"], 6);
}

}  // namespace

}  // namespace vlmtrain::e2e
