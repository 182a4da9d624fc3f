#include "vlmtrain/train/run_files.h"

#include <gmock/gmock.h>

#include <fstream>

#include "parity/temporary_folder.h"
#include "planner/user_error.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
using planner::message_of;
using testing::AllOf;
using testing::HasSubstr;

/// An empty output.dir, and inputs of which a test puts one where the run writes.
class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    fs::create_directories(run());
    config_.output.dir = run();
    config_.data.train = put(folder_.path() / "train.json");
    config_.model.path = folder_.path();
    config_file_ = put(folder_.path() / "train.yaml");
  }

  fs::path run() const { return folder_.path() / "run"; }

  static fs::path put(const fs::path& file) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "something";
    return file;
  }

  void expect_refused(const std::string& words) const {
    EXPECT_THAT(message_of([this] { check_run_files(config_, config_file_); }),
                AllOf(HasSubstr(words), HasSubstr("another output.dir")));
  }

  Config config_;
  fs::path config_file_;

 private:
  const parity::TemporaryFolder folder_;
};

TEST_F(RunFilesTest, InputsElsewhereAreFine) {
  EXPECT_NO_THROW(check_run_files(config_, config_file_));
  config_.data.eval = put(run() / "my_data/eval.json");  // beside what the run writes
  config_.model.adapter = put(run() / "checkpoints-of-last-week/step-1/adapter_config.json").parent_path();
  EXPECT_NO_THROW(check_run_files(config_, config_file_));
  config_.data.train = run() / "checkpoints/train.json";  // which is not there
  EXPECT_NO_THROW(check_run_files(config_, config_file_));
}

TEST_F(RunFilesTest, NoInputStandsWhereTheRunClears) {
  put(run() / "run.lock");
  config_.data.eval = put(run() / "checkpoints/step-1/eval.json");
  expect_refused("data.eval: ");
}

TEST_F(RunFilesTest, NoInputIsAFileOfTheRun) {
  put(run() / "run.lock");
  config_.data.train = put(run() / "samples.jsonl");
  expect_refused("data.train: ");
  config_.data.train = run().parent_path() / "link.jsonl";
  fs::create_symlink(run() / "samples.jsonl", config_.data.train.name());
  expect_refused("samples.jsonl, a file that the run writes");
}

TEST_F(RunFilesTest, FilesOfAnotherProgramAreNotWrittenOver) {
  put(run() / "metrics.jsonl");
  EXPECT_THAT(message_of([this] { check_run_files(config_, config_file_); }), HasSubstr("holds metrics.jsonl"));
  put(run() / "run.lock");
  EXPECT_NO_THROW(check_run_files(config_, config_file_)) << "of a run before";
}

}  // namespace
}  // namespace vlmtrain::train
