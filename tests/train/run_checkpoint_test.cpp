#include "vlmtrain/train/run_checkpoint.h"

#include <stdlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
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

  void put_state(const std::string& json) const {
    fs::create_directories(folder_ / "trainer_state");
    std::ofstream(folder_ / "trainer_state/state.json") << json;
  }

  std::string refusal(const nlohmann::ordered_json& fingerprint, ExitCode code) const {
    try {
      load_run_state(folder_, fingerprint);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    ADD_FAILURE() << "the state was taken";
    return {};
  }

 private:
  fs::path folder_;
};

TEST_F(RunCheckpointTest, TheStateReadsBack) {
  put_state(R"({"step":7,"epoch":2,"position":3,"fingerprint":{"training.seed":"5"}})");
  const RunState state = load_run_state(folder(), {{"training.seed", "5"}});
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.cursor.epoch, 2);
  EXPECT_EQ(state.cursor.position, 3);
}

TEST_F(RunCheckpointTest, WhatDiffersIsNamedWhateverItsType) {
  put_state(R"({"step":7,"epoch":2,"position":3,"fingerprint":{"training.seed":5,"same":"x"}})");
  const std::string message =
      refusal({{"training.seed", "6"}, {"same", "x"}, {"model.path", "tiny"}}, ExitCode::kUsage);
  EXPECT_THAT(message, HasSubstr("training.seed: was 5, is 6"));
  EXPECT_THAT(message, HasSubstr("model.path: was not there, is tiny"));
  EXPECT_THAT(message, Not(HasSubstr("same")));
}

TEST_F(RunCheckpointTest, AStateThatIsDamagedIsNamed) {
  put_state(R"({"step":"seven","epoch":2,"position":3})");
  EXPECT_THAT(refusal({}, ExitCode::kBadData), HasSubstr("state.json"));
  put_state(R"({"step":7)");
  EXPECT_THAT(refusal({}, ExitCode::kBadData), HasSubstr("state.json"));
}

TEST_F(RunCheckpointTest, TheNewestIsTheOneWithTheMostSteps) {
  for (const char* name : {"step-9", "step-10", "step-x", "step-", ".step-11.new", "other"}) {
    fs::create_directories(folder() / "checkpoints" / name);
  }
  std::ofstream(folder() / "checkpoints/step-12") << "a file";
  EXPECT_EQ(RunCheckpoints(folder(), 2).newest(), folder() / "checkpoints/step-10");
}

TEST_F(RunCheckpointTest, ANewRunHasNone) {
  EXPECT_EQ(RunCheckpoints(folder() / "nowhere", 2).newest(), std::nullopt);
}

}  // namespace
}  // namespace vlmtrain::train
