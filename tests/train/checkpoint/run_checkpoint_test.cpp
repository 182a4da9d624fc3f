#include "vlmtrain/train/run_checkpoint.h"

#include <stdlib.h>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "train/checkpoint/checkpoint_content.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RunCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "vlmtrain_train_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path& folder() const { return folder_; }

  void write_state(const std::string& json) const {
    fs::create_directories(folder_ / "trainer_state");
    std::ofstream(folder_ / "trainer_state/state.json") << json;
  }

  std::string get_refusal() const {
    try {
      load_run_state(folder_);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    ADD_FAILURE() << "the state was taken";
    return {};
  }

 private:
  fs::path folder_;
};

TEST_F(RunCheckpointTest, TheStateReadsBack) {
  write_state(R"({"step":7,"epoch":2,"position":3,"fingerprint":{"training.seed":"5"}})");
  const RunState state = load_run_state(folder());
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.cursor.sources.at(0).epoch, 2);
  EXPECT_EQ(state.cursor.sources.at(0).offset, 3);
}

TEST_F(RunCheckpointTest, NamesADamagedState) {
  write_state(R"({"step":"seven","epoch":2,"position":3})");
  EXPECT_THAT(get_refusal(), HasSubstr("state.json"));
  write_state(R"({"step":7)");
  EXPECT_THAT(get_refusal(), HasSubstr("state.json"));
}

TEST_F(RunCheckpointTest, RejectsNumbersOutOfRange) {
  const nlohmann::ordered_json original{
      {"step", 30}, {"skipped_steps", 2}, {"total_steps", 40},
      {"epoch", 1}, {"position", 5},      {"fingerprint", {{kSampleCountKey, "6"}, {kTotalStepsKey, "40"}}}};
  const auto write_value = [&](const std::string& key, int64_t value) {
    auto state = original;
    state[key] = value;
    write_state(state.dump());
  };
  const std::vector<std::pair<std::string, std::vector<int64_t>>> valid_values{
      {"step", {2, 40}}, {"skipped_steps", {0, 30}}, {"total_steps", {30, 40}}, {"epoch", {0}}, {"position", {0, 5}}};
  for (const auto& [key, values] : valid_values) {
    for (const int64_t value : values) {
      write_value(key, value);
      EXPECT_NO_THROW(load_run_state(folder())) << key << " " << value;
    }
  }
  write_state(R"({"step":0,"epoch":0,"position":0})");
  EXPECT_NO_THROW(load_run_state(folder())) << "of a run that has not begun";
  constexpr int64_t kHuge = int64_t{1} << 62;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> invalid_values{
      {"step", {-1, 41, kHuge}},
      {"skipped_steps", {-1, 31}},
      {"total_steps", {-1, 0, 29, 41, kHuge}},
      {"epoch", {-1, kHuge}},
      {"position", {-1, 6}},
      {"changed_at", {-1, kHuge}},
      {"schedule_start", {-1, 31}},
      {"schedule_start_skipped", {-1, 1}}};
  for (const auto& [key, values] : invalid_values) {
    for (const int64_t value : values) {
      write_value(key, value);
      // A run with fewer steps than were done: either number may be wrong.
      const std::string expected_text = value == 29 ? "step is 30" : fmt::format("{} is {}", key, value);
      EXPECT_THAT(get_refusal(), AllOf(HasSubstr("trainer_state/state.json"), HasSubstr(expected_text)));
    }
  }
}

TEST_F(RunCheckpointTest, RejectsInvalidEvaluationState) {
  const auto write_evaluation = [&](const std::string& evaluation) {
    write_state(R"({"step":7,"epoch":0,"position":3,"evaluation":)" + evaluation + "}");
  };
  write_evaluation(
      R"({"basis":{},"without_improvement":0,"is_due":false,"best_step":5,"best_value":0.1,"best_loss":0.3})");
  EXPECT_EQ(load_run_state(folder()).evaluation.best_step_loss, 0.3);
  write_evaluation(R"({"basis":{"a":"b"},"without_improvement":2,"is_due":true,"best_step":5,"best_value":0.1})");
  const EvaluationState original = load_run_state(folder()).evaluation;
  EXPECT_EQ(original.best_step_loss, std::nullopt) << "of an older version";
  EXPECT_EQ(original.best_step, 5);
  EXPECT_EQ(original.best_metric_value, 0.1);
  EXPECT_EQ(original.num_evaluations_without_improvement, 2);
  EXPECT_TRUE(original.is_due);
  write_evaluation("null");
  EXPECT_EQ(load_run_state(folder()).evaluation.best_step, std::nullopt);
  const std::pair<const char*, const char*> invalid_values[]{
      {R"([1])", "evaluation: is [1]"},
      {R"({"is_due":false})", "without_improvement"},
      {R"({"without_improvement":0})", "is_due"},
      {R"({"without_improvement":0,"is_due":3})", "is_due"},
      {R"({"without_improvement":-1,"is_due":false})", "evaluation.without_improvement is -1"},
      {R"({"without_improvement":8,"is_due":false})", "evaluation.without_improvement is 8"},
      {R"({"without_improvement":0,"is_due":false,"best_step":5})", "one of best_step and best_value"},
      {R"({"without_improvement":0,"is_due":false,"best_value":5})", "one of best_step and best_value"},
      {R"({"without_improvement":0,"is_due":false,"best_step":8,"best_value":0.1})", "evaluation.best_step is 8"},
      {R"({"without_improvement":0,"is_due":false,"best_step":0,"best_value":0.1})", "evaluation.best_step is 0"},
      {R"({"without_improvement":0,"is_due":false,"best_step":4611686018427387904,"best_value":1})", "best_step"},
      {R"({"without_improvement":0,"is_due":false,"best_step":5,"best_value":"less"})", "best_value"},
      {R"({"without_improvement":0,"is_due":false,"best_step":5,"best_value":null})", "best_value"}};
  for (const auto& [evaluation, expected_text] : invalid_values) {
    write_evaluation(evaluation);
    EXPECT_THAT(get_refusal(), AllOf(HasSubstr("trainer_state/state.json"), HasSubstr(expected_text))) << evaluation;
  }
}

/// The epochs of a changed data set count from the change, so that the run may have more steps than
/// they take.
TEST_F(RunCheckpointTest, ChangedRunMayHaveEarlierSteps) {
  nlohmann::ordered_json state{{"step", 45}, {"total_steps", 60}, {"epoch", 0}, {"position", 5}};
  state["fingerprint"] = {{kSampleCountKey, "6"}, {kTotalStepsKey, "40"}};
  write_state(state.dump());
  EXPECT_THAT(get_refusal(), HasSubstr("total_steps is 60"));
  state["changed_at"] = 20;
  write_state(state.dump());
  EXPECT_EQ(load_run_state(folder()).total_steps, 60);
  state["total_steps"] = 61;
  write_state(state.dump());
  EXPECT_THAT(get_refusal(), HasSubstr("total_steps is 61"));
}

/// A source that is used several times per epoch, in the spellings of data.train.
TEST_F(RunCheckpointTest, RepeatedSourcesMakeMoreStepsThanSamples) {
  nlohmann::ordered_json state{{"step", 45}, {"total_steps", 60}, {"epoch", 0}, {"position", 5}};
  state["fingerprint"] = {{kSampleCountKey, "6"}, {kTotalStepsKey, "40"}, {"data.train", "d.json"}};
  write_state(state.dump());
  EXPECT_THAT(get_refusal(), HasSubstr("total_steps is 60"));
  data::SourceList sources;
  for (const char* value : {R"([{"path":"d.json","repeat":2}])", R"({"path":"d.json","repeat":1.5})",
                            R"(["a.json",{"path":"d.json","repeat":0.5},{"path":"e.json","repeat":9}])"}) {
    ASSERT_EQ(sources.set(nlohmann::ordered_json::parse(value)), std::nullopt);
    Config config;
    config.data.train = sources;
    state["fingerprint"]["data.train"] = make_run_fingerprint(config, 6)["data.train"];
    write_state(state.dump());
    EXPECT_EQ(load_run_state(folder()).total_steps, 60) << value;
  }
}

TEST_F(RunCheckpointTest, RejectsAStepOtherThanTheFolders) {
  const auto checkpoint = folder() / "step-30";
  fs::create_directories(checkpoint / "trainer_state");
  const auto load_with_step = [&](int64_t step) {
    std::ofstream(checkpoint / "trainer_state/state.json")
        << fmt::format(R"({{"step":{},"total_steps":40,"epoch":1,"position":5}})", step);
    return load_run_state(checkpoint);
  };
  EXPECT_EQ(load_with_step(30).step, 30);
  try {
    load_with_step(39);
    FAIL() << "nine steps would be left out";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("state.json: step is 39"), HasSubstr("folder's name has 30")));
  }
}

TEST_F(RunCheckpointTest, RejectsAnInvalidFingerprint) {
  write_state(R"({"step":7,"epoch":2,"position":3,"fingerprint":-1})");
  EXPECT_THAT(get_refusal(), HasSubstr("fingerprint is -1"));
}

TEST_F(RunCheckpointTest, NewestHasTheMostSteps) {
  for (const char* name : {"step-9", "step-10", "step-x", "step-", ".step-11.new", "other"}) {
    fs::create_directories(folder() / "checkpoints" / name);
  }
  std::ofstream(folder() / "checkpoints/step-12") << "a file";
  EXPECT_EQ(CheckpointManager(folder(), 2).find_newest(), folder() / "checkpoints/step-10");
}

TEST_F(RunCheckpointTest, ResolvesARunFolderToItsNewestCheckpoint) {
  EXPECT_EQ(resolve_checkpoint(folder() / "nowhere"), folder() / "nowhere");
  EXPECT_EQ(resolve_checkpoint(folder()), folder()) << "a folder of something else";
  std::ofstream(folder() / "run.lock") << "";
  try {
    resolve_checkpoint(folder());
    FAIL() << "it has none yet";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), HasSubstr("is the folder of a run without a checkpoint"));
  }
  for (const char* name : {"step-9", "step-10"}) fs::create_directories(folder() / "checkpoints" / name);
  EXPECT_EQ(resolve_checkpoint(folder()), folder() / "checkpoints/step-10");
  fs::remove(folder() / "run.lock");
  EXPECT_EQ(resolve_checkpoint(folder()), folder() / "checkpoints/step-10") << "one that was copied without its lock";
  std::ofstream(folder() / "config.json") << "{}";
  EXPECT_EQ(resolve_checkpoint(folder()), folder()) << "a checkpoint itself";
}

TEST_F(RunCheckpointTest, DoesNotRecreateARemovedFolder) {
  fs::create_directories(folder() / "run");
  CheckpointManager checkpoints(folder() / "run", 2);
  fs::remove_all(folder() / "run");
  try {
    checkpoints.write(CheckpointContent{});
    ADD_FAILURE() << "it was written";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("run was removed or renamed during the run"));
  }
  EXPECT_FALSE(fs::exists(folder() / "run"));
}

TEST_F(RunCheckpointTest, NewRunHasNoCheckpoint) {
  EXPECT_EQ(CheckpointManager(folder() / "nowhere", 2).find_newest(), std::nullopt);
}

class RunCheckpointCheckTest : public RunCheckpointTest {
 protected:
  fs::path checkpoint(int64_t step) const { return folder() / "checkpoints" / fmt::format("step-{}", step); }

  /// Writes all files of a checkpoint as short as possible.
  void write_checkpoint(int64_t step) const {
    fs::create_directories(checkpoint(step) / "trainer_state");
    io::write_safetensors(checkpoint(step) / "model.safetensors", {{"weight", at::zeros({2})}});
    io::write_safetensors(checkpoint(step) / "trainer_state/optimizer.safetensors", {{"moment", at::zeros({2})}});
    std::ofstream(checkpoint(step) / "trainer_state/state.json") << R"({"step":7,"epoch":2,"position":3})";
    std::ofstream(checkpoint(step) / "trainer_state/ledger.json") << "{}";
  }

  /// Returns why the checkpoints are rejected; empty where they are not.
  std::string get_refusal() const {
    try {
      CheckpointManager(folder(), 2).check_newest_checkpoint();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    return {};
  }
};

TEST_F(RunCheckpointCheckTest, AcceptsCompleteCheckpoints) {
  EXPECT_EQ(get_refusal(), "");
  write_checkpoint(5);
  EXPECT_EQ(get_refusal(), "");
}

TEST_F(RunCheckpointCheckTest, RejectsAnEmptyFolder) {
  fs::create_directories(checkpoint(7));
  EXPECT_THAT(get_refusal(),
              AllOf(HasSubstr("step-7: is not a complete checkpoint"), HasSubstr("trainer_state/state.json"),
                    HasSubstr("start the run from the beginning")));
  write_checkpoint(5);
  EXPECT_THAT(get_refusal(), HasSubstr("resume from step-5"));
}

TEST_F(RunCheckpointCheckTest, NamesMissingAndTruncatedFiles) {
  write_checkpoint(5);
  for (const char* file : {"model.safetensors", "trainer_state/optimizer.safetensors", "trainer_state/state.json",
                           "trainer_state/ledger.json"}) {
    write_checkpoint(7);
    fs::remove(checkpoint(7) / file);
    EXPECT_THAT(get_refusal(),
                AllOf(HasSubstr("step-7: is not a complete checkpoint"), HasSubstr("resume from step-5")))
        << file;
    write_checkpoint(7);
    fs::resize_file(checkpoint(7) / file, fs::file_size(checkpoint(7) / file) - 1);
    EXPECT_THAT(get_refusal(), AllOf(HasSubstr(fs::path(file).filename().string()), HasSubstr("resume from step-5")))
        << file;
  }
  write_checkpoint(7);
  fs::remove(checkpoint(5) / "model.safetensors");
  EXPECT_EQ(get_refusal(), "") << "only the newest is needed";
}

TEST_F(RunCheckpointCheckTest, RejectsAFileWithACheckpointName) {
  write_checkpoint(5);
  std::ofstream(folder() / "checkpoints/step-9") << "a file";
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("step-9"), HasSubstr("is not a folder; move it away")));
}

}  // namespace

}  // namespace vlmtrain::train
