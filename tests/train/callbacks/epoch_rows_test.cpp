#include <gmock/gmock.h>

#include "train/small_run.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::SizeIs;

/// A sample a step, hence four steps an epoch.
class EpochRowsTest : public SmallRunTest {
 protected:
  EpochRowsTest() {
    config_.training.global_batch_size = 1;
    config_.training.micro_batch_size = 1;
    config_.output.save_steps = 1;
    config_.output.save_total_limit = 99;
    config_.output.report = config_.output.tensorboard = false;
  }

  /// Without what was measured.
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
  config_.resume = ResumePolicy::kChanged;
  config_.training.max_steps = 7;
  run_training();
  const auto after_resume = rows();
  ASSERT_THAT(after_resume, SizeIs(2));
  EXPECT_EQ(after_resume.front(), before_resume.front());
}

TEST_F(EpochRowsTest, UnfinishedEpochRowIsReplacedOnResume) {
  config_.training.max_steps = 6;
  run_training();
  fs::remove(run_folder() / "epochs.jsonl");  // as an older version left it
  config_.training.max_steps = 8;
  config_.resume = ResumePolicy::kChanged;
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
  // As a stop leaves it: the step's line and checkpoint are there, without the evaluation.
  const auto file = run_folder() / "checkpoints/step-4/trainer_state/state.json";
  auto state = nlohmann::json::parse(read_text(file));
  state["evaluation"]["is_due"] = true;
  std::ofstream(file) << state.dump();
  std::filesystem::remove(file.parent_path() / "checksums.json");  // which would notice it
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

}  // namespace

}  // namespace vlmtrain::train
