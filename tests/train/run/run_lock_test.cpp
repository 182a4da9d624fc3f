#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <optional>

#include "base/captured_log.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RunLockTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "vlmtrain_lock_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path& folder() const { return folder_; }

  std::string get_refusal(ExitCode code) const {
    try {
      const RunLock lock(folder_);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return {};
  }

 private:
  fs::path folder_;
};

TEST_F(RunLockTest, RejectsASecondRun) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  {
    const RunLock first(folder());
    EXPECT_THAT(get_refusal(ExitCode::kUsage),
                AllOf(HasSubstr(folder().string()), HasSubstr(fmt::format("process {} on {}", getpid(), host.data())),
                      HasSubstr("since 20"), HasSubstr("output.dir")));
  }
  EXPECT_EQ(get_refusal(ExitCode::kUsage), "");
}

TEST_F(RunLockTest, RejectsANamedPipe) {
  ASSERT_EQ(mkfifo((folder() / "run.lock").c_str(), 0600), 0);
  EXPECT_THAT(get_refusal(ExitCode::kFailed), AllOf(HasSubstr("run.lock: is a named pipe"), HasSubstr("remove it")));
}

TEST_F(RunLockTest, IsReleasedByAKill) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const RunLock lock(folder());
    if (write(pipe_ends[1], "!", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
  EXPECT_THAT(get_refusal(ExitCode::kUsage), HasSubstr(fmt::format("process {} on", holder)));
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  EXPECT_EQ(get_refusal(ExitCode::kUsage), "");
}

TEST_F(RunLockTest, LogsNothingWithLocks) {
  const CapturedLog log;
  const RunLock lock(folder());
  EXPECT_EQ(log.text(), "");
}

TEST_F(RunLockTest, IgnoresOldFileContent) {
  { const RunLock first(folder()); }
  EXPECT_TRUE(fs::exists(folder() / "run.lock"));
  EXPECT_EQ(get_refusal(ExitCode::kUsage), "");
}

TEST_F(RunLockTest, NamesAMissingFolder) {
  fs::remove_all(folder());
  EXPECT_THAT(get_refusal(ExitCode::kFailed), HasSubstr((folder() / "run.lock").string()));
}

}  // namespace

}  // namespace vlmtrain::train
