#include <cmath>
#include <set>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Errors that are known at the start stop a run there; later ones leave a checkpoint.
class FailEarlyTest : public CommandTest {
 protected:
  static nlohmann::json question(const std::string& id, const std::string& image, const std::string& text = "What?") {
    return {
        {"id", id},
        {"image", image},
        {"conversations", {{{"from", "human"}, {"value", "<image>\n" + text}}, {{"from", "gpt"}, {"value", "No."}}}}};
  }

  /// Writes an image with a whole header and truncated pixels.
  void truncate_image(const std::string& name) const {
    const std::string original = read_text(folder() / "images/strip.jpg");
    write_text(folder() / "images" / name, original.substr(0, original.size() / 2));
  }

  std::vector<std::string> ids_drawn(const std::string& run) const {
    std::vector<std::string> ids;
    for (const auto& step : step_lines(run + "/samples.jsonl")) {
      EXPECT_EQ(step["ids"].size(), 4U) << "the global batch is exact";
      for (const auto& id : step["ids"]) ids.push_back(id);
    }
    return ids;
  }
};

TEST_F(FailEarlyTest, ReportsAllBadSamplesBeforeTheFirstStep) {
  write_text(folder() / "images/text.png", "not a picture");
  std::string long_question;
  for (int i = 0; i < 400; ++i) long_question += " Really?";
  auto all = records();
  all.push_back(question("gone", "gone.png"));
  all.push_back(question("text", "text.png"));
  all.push_back(question("endless", "small.png", long_question));
  write_records(all);
  const Result result = train({"data.max_length=1000"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  for (const char* words : {"3 of 14 samples cannot be used", "sample gone", "images/gone.png", "sample text",
                            "images/text.png", "sample endless", "data.max_length=1000", "data.on_bad_sample=skip"}) {
    EXPECT_THAT(result.err, HasSubstr(words));
  }
  EXPECT_THAT(result.err, Not(HasSubstr("step 1/")));
  EXPECT_THAT(entries(folder() / "run"), ElementsAre("data_check.jsonl", "ledger.json", "run.lock"));
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["failed"], 3);
  EXPECT_EQ(ledger["not_reached"], kRecords);

  const Result skipping = train({"data.max_length=1000", "data.on_bad_sample=skip"});
  EXPECT_EQ(skipping.exit_code, 0) << skipping.err;
  EXPECT_THAT(skipping.err, HasSubstr("14 samples checked in"));
  EXPECT_THAT(skipping.err, HasSubstr("11 of them unchanged; 3 cannot be used")) << "the first start is remembered";
  EXPECT_EQ(json_file("run/ledger.json")["dropped"], 3);
}

/// Missing images are known at the start, damaged ones when they are decoded: both give the same
/// steps, although the second run has planned more.
TEST_F(FailEarlyTest, EpochUsesEachUsableSampleOnce) {
  truncate_image("cut.jpg");
  const std::vector<std::string> settings{"data.on_bad_sample=skip", "training.max_steps=auto", "training.epochs=2"};
  for (const std::string image : {"gone.jpg", "cut.jpg"}) {
    const bool is_known = image == "gone.jpg";
    auto all = records();
    for (int i = 0; i < 6; ++i) all.insert(all.begin() + 2 * i, question("bad-" + std::to_string(i), image));
    write_records(all);
    auto with_dir = settings;
    with_dir.push_back("output.dir=" + image);
    train_well(with_dir);
    const auto ids = ids_drawn(image);
    ASSERT_EQ(ids.size(), 24U) << "22 samples are six steps of four";
    EXPECT_EQ(std::set(ids.begin(), ids.begin() + 11).size(), 11U);
    EXPECT_EQ(std::set(ids.begin() + 11, ids.begin() + 22).size(), 11U);
    const auto steps = step_lines(image + "/metrics.jsonl");
    if (is_known) {
      EXPECT_NEAR(steps[1]["epoch"].get<double>(), 8.0 / 11, 1e-6);
    }
    EXPECT_NEAR(steps.back()["epoch"].get<double>(), 24.0 / 11, 1e-6);
    EXPECT_EQ(steps.back()["total_steps"], is_known ? 6 : 9);
    const auto ledger = json_file(image + "/ledger.json");
    EXPECT_EQ(ledger["used"], 11);
    EXPECT_EQ(ledger["dropped"], 6);
    EXPECT_EQ(train(with_dir).exit_code, 0) << "no step remains";
    EXPECT_EQ(step_lines(image + "/metrics.jsonl").size(), 6U);
  }
  EXPECT_EQ(ids_drawn("gone.jpg"), ids_drawn("cut.jpg"));
}

/// A run with a damaged image does five steps, saves them, and resumes once the image is repaired,
/// as if it had never been damaged.
TEST_F(FailEarlyTest, DamagedImageStopsTheRunAfterACheckpoint) {
  std::filesystem::copy(folder() / "images/strip.jpg", folder() / "images/cut.jpg");
  auto all = records();
  for (int i = 0; i < 14; ++i) all.push_back(question("more-" + std::to_string(i), "small.png"));
  all.push_back(question("damaged", "cut.jpg"));
  write_records(all);
  const std::vector<std::string> settings{"training.max_steps=7", "output.save_steps=0", "training.seed=6"};
  const auto in = [&](const std::string& dir) {
    auto with_dir = settings;
    with_dir.push_back("output.dir=" + dir);
    return with_dir;
  };
  train_well(in("whole"));
  truncate_image("cut.jpg");
  const Result stopped = train(in("run"));
  EXPECT_EQ(stopped.exit_code, 4) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("sample damaged"));
  const size_t completed_steps = step_lines("run/metrics.jsonl").size();
  ASSERT_EQ(completed_steps, 5U) << "the order of this seed has the damaged image at place 20";
  EXPECT_THAT(stopped.err, HasSubstr("step " + std::to_string(completed_steps) + " is saved ("));
  EXPECT_THAT(entries(folder() / "run/checkpoints"), ElementsAre("step-" + std::to_string(completed_steps)));
  EXPECT_EQ(json_file("run/ledger.json")["failed"], 1);

  std::filesystem::copy(folder() / "images/strip.jpg", folder() / "images/cut.jpg",
                        std::filesystem::copy_options::overwrite_existing);
  train_well(in("run"));
  for (const char* file : {"samples.jsonl", "ledger.json", "checkpoints/step-7/model.safetensors"}) {
    EXPECT_EQ(read_text(folder() / "run" / file), read_text(folder() / "whole" / file)) << file;
  }
}

TEST_F(FailEarlyTest, NonFiniteStepsStopTheRunAfterACheckpoint) {
  const Result result = train({"training.learning_rate=1e30", "training.max_steps=9", "output.save_steps=0",
                               "output.sample_predictions=0", "training.warmup_ratio=0"});
  EXPECT_EQ(result.exit_code, 5) << result.err;
  const std::string reason = "as in the 2 steps before";
  EXPECT_THAT(result.err, HasSubstr(reason));
  EXPECT_EQ(result.err.find(reason), result.err.rfind(reason)) << "once, as the error";
  const auto last = step_lines("run/metrics.jsonl").back();
  EXPECT_EQ(last["skipped_steps"], 3);
  const std::string folder_name = "step-" + last["step"].dump();
  EXPECT_THAT(entries(folder() / "run/checkpoints"), ElementsAre(folder_name));
  EXPECT_EQ(json_file("run/checkpoints/" + folder_name + "/trainer_state/state.json")["skipped_steps"], 3);
}

TEST_F(FailEarlyTest, FailsWithoutAnyFiniteStep) {
  const auto base = folder() / "base";
  std::filesystem::copy(checkpoint(), base, std::filesystem::copy_options::recursive);
  // The last weights of the file are set to the largest float32, so that sums of them are infinite.
  std::string weights = read_text(base / "model.safetensors");
  for (size_t at = weights.size() - 4096; at < weights.size(); at += 4) weights.replace(at, 4, "\xFF\xFF\x7F\x7F");
  write_text(base / "model.safetensors", weights);
  const std::vector<std::string> settings{"model.path=base", "training.max_steps=2", "output.sample_predictions=0"};
  for (const bool again : {false, true}) {
    const Result result = train(settings);
    EXPECT_EQ(result.exit_code, 5) << again << result.err;
    EXPECT_THAT(result.err, HasSubstr("all 2 steps of the run were skipped"));
    EXPECT_THAT(result.err, Not(HasSubstr("steps done")));
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
