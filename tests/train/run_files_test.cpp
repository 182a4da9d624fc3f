#include "vlmtrain/train/run_files.h"

#include <gmock/gmock.h>

#include <fstream>

#include "parity/temporary_folder.h"
#include "planner/user_error.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
using planner::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

/// An empty output.dir, and inputs of which a test puts one where the run writes.
class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    fs::create_directories(run_folder());
    config_.output.dir = run_folder();
    config_.data.train = write_input(folder_.path() / "train.json");
    config_.model.path = folder_.path();
    config_file_ = write_input(folder_.path() / "train.yaml");
  }

  fs::path run_folder() const { return folder_.path() / "run"; }

  static fs::path write_input(const fs::path& file) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "something";
    return file;
  }

  void expect_refused(const std::string& text) const {
    EXPECT_THAT(get_error_message([this] { check_run_files(config_, config_file_); }),
                AllOf(HasSubstr(text), HasSubstr("another output.dir")));
  }

  Config config_;
  fs::path config_file_;

 private:
  const parity::TemporaryFolder folder_;
};

TEST_F(RunFilesTest, AcceptsInputsInOtherFolders) {
  EXPECT_NO_THROW(check_run_files(config_, config_file_));
  config_.data.eval = write_input(run_folder() / "my_data/eval.json");  // beside what the run writes
  config_.model.adapter =
      write_input(run_folder() / "checkpoints-of-last-week/step-1/adapter_config.json").parent_path();
  EXPECT_NO_THROW(check_run_files(config_, config_file_));
  config_.data.train = run_folder() / "checkpoints/train.json";  // which is not there
  EXPECT_NO_THROW(check_run_files(config_, config_file_));
}

TEST_F(RunFilesTest, RejectsInputsInFoldersThatTheRunClears) {
  write_input(run_folder() / "run.lock");
  config_.data.eval = write_input(run_folder() / "checkpoints/step-1/eval.json");
  expect_refused("data.eval: ");
}

TEST_F(RunFilesTest, RejectsInputsThatTheRunWrites) {
  write_input(run_folder() / "run.lock");
  config_.data.train = write_input(run_folder() / "samples.jsonl");
  expect_refused("data.train: ");
  config_.data.train = run_folder().parent_path() / "link.jsonl";
  fs::create_symlink(run_folder() / "samples.jsonl", config_.data.train.name());
  expect_refused("samples.jsonl, a file that the run writes");
}

TEST_F(RunFilesTest, DoesNotOverwriteForeignFiles) {
  write_input(run_folder() / "metrics.jsonl");
  EXPECT_THAT(get_error_message([this] { check_run_files(config_, config_file_); }), HasSubstr("holds metrics.jsonl"));
  write_input(run_folder() / "run.lock");
  EXPECT_NO_THROW(check_run_files(config_, config_file_)) << "of a run before";
}

}  // namespace
}  // namespace vlmtrain::train
