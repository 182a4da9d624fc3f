#include <sys/stat.h>

#include <map>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;
using testing::Not;

/// Files in output.dir with names that the run writes.
class RunFilesTest : public CommandTest {
 protected:
  void expect_refused(const std::vector<std::string>& arguments, int exit_code,
                      const std::vector<std::string>& messages) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    for (const auto& message : messages) EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  }

  /// Returns the content of every file in the run's folder.
  std::map<std::string, std::string> all_of_the_run() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder() / "run")) {
      if (entry.is_regular_file()) files[entry.path().string()] = read_text(entry.path());
    }
    return files;
  }
};

TEST_F(RunFilesTest, RejectsInputsThatTheRunOverwrites) {
  train_well({"training.max_steps=1", "output.sample_predictions=1"});
  const auto before = all_of_the_run();
  // Tests every name that a run writes, so that none is forgotten.
  for (const auto& name : entries(folder() / "run")) {
    SCOPED_TRACE(name);
    const std::string path = "run/" + name;
    expect_refused(train_arguments({"data.train=" + path}), 2, {"data.train: " + path, "another output.dir"});
  }
  std::filesystem::create_symlink("run/metrics.jsonl", folder() / "link.jsonl");
  const std::vector<std::pair<std::string, std::string>> other_inputs{{"data.train", "link.jsonl"},
                                                                      {"model.path", "run/checkpoints"},
                                                                      {"data.eval", "run/samples.jsonl"},
                                                                      {"data.image_root", "run/checkpoints"},
                                                                      {"model.path", "run/checkpoints/step-1"},
                                                                      {"model.path", "run/../run/checkpoints/step-1/"},
                                                                      {"model.adapter", "run/checkpoints/step-1"}};
  for (const auto& [key, path] : other_inputs) {
    expect_refused(train_arguments({key + "=" + path}), 2, {key + ": " + path, "another output.dir"});
  }
  EXPECT_EQ(all_of_the_run(), before);
}

TEST_F(RunFilesTest, KeepsForeignFiles) {
  std::filesystem::create_directory(folder() / "run");
  write_text(folder() / "run/metrics.jsonl", "of another program\n");
  expect_refused(train_arguments({}), 2, {"output.dir: run contains metrics.jsonl", "choose another folder"});
  EXPECT_EQ(read_text(folder() / "run/metrics.jsonl"), "of another program\n");
  EXPECT_THAT(entries(folder() / "run"), testing::ElementsAre("metrics.jsonl"));
}

TEST_F(RunFilesTest, ReplacesOnlyItsOwnConfiguration) {
  std::filesystem::create_directory(folder() / "run");
  const std::string edited_config = read_text(folder() / "train.yaml") + "# what was tried before\n";
  write_text(folder() / "run/config.yaml", edited_config);
  expect_refused({"--config", "run/config.yaml", "--device", "cpu"}, 2, {"--config: run/config.yaml", "copy it"});
  EXPECT_EQ(read_text(folder() / "run/config.yaml"), edited_config);
  std::filesystem::remove(folder() / "run/config.yaml");
  train_well({"training.max_steps=1"});
  const Result again = run({"--config", "run/config.yaml", "--device", "cpu"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(RunFilesTest, RejectsAPipeInPlaceOfAFile) {
  std::filesystem::create_directory(folder() / "run");
  ASSERT_EQ(mkfifo((folder() / "run/metrics.jsonl").c_str(), 0600), 0);
  expect_refused(train_arguments({}), 5, {"run/metrics.jsonl: is a named pipe", "remove it"});
  expect_refused({"report", "run"}, 4, {"run/metrics.jsonl: is a named pipe"});
}

TEST_F(RunFilesTest, RejectsAFileAsFolder) {
  for (const std::string dir : {"train.yaml", "train.yaml/run", "/dev/null"}) {
    expect_refused(train_arguments({"output.dir=" + dir}), 2, {"output.dir: " + dir, "choose another"});
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
