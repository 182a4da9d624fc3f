#include "vlmtrain/io/atomic.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <thread>

#include "io/child_process.h"
#include "io/files/file_system.h"
#include "io/temporary_folder.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WriteFile : public TemporaryFolderTest {};
class AtomicDirectoryTest : public TemporaryFolderTest {};

TEST_F(WriteFile, WritesAndReplaces) {
  const fs::path file = folder() / "a.json";
  write_file(file, "old");
  write_file(file, std::string(3'000'000, 'x'));
  EXPECT_EQ(read_contents(file), std::string(3'000'000, 'x'));
  write_file(file, "");
  EXPECT_EQ(fs::file_size(file), 0);
  EXPECT_THAT(entries(folder()), ElementsAre("a.json"));
}

TEST_F(WriteFile, KeepsTheOldFileWithoutCommit) {
  const fs::path path = put("a", "old");
  {
    AtomicFile file(path);
    file.write("half of the new");
    EXPECT_EQ(read_contents(path), "old");
  }
  EXPECT_EQ(read_contents(path), "old");
  EXPECT_THAT(entries(folder()), ElementsAre("a"));
}

TEST_F(WriteFile, ErrorsNameThePath) {
  EXPECT_THAT(get_error_message([&] { write_file(folder() / "none" / "a", "x"); }, ExitCode::kFailed),
              AllOf(HasSubstr((folder() / "none" / "a").string()), HasSubstr("No such file"), HasSubstr("create")));
  fs::create_directory(folder() / "d");
  EXPECT_THAT(get_error_message([&] { write_file(folder() / "d", "x"); }, ExitCode::kFailed), HasSubstr("is a folder"));
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
}

int write_past_size_limit(const fs::path& path, int64_t expected_bytes) {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    AtomicFile file(path, expected_bytes);
    file.write(std::string(4000, 'x'));
    file.write(std::string(6000, 'x'));
    return 2;
  } catch (const UserError& error) {
    message = error.what();
  }
  const bool is_reported =
      message.find(path.string()) != std::string::npos && message.find("File too large") != std::string::npos &&
      message.find("10000 bytes") != std::string::npos && message.find("ulimit") != std::string::npos;
  return is_reported ? 0 : 3;
}

TEST_F(WriteFile, KeepsTheOldFileWhenWritingFails) {
  const fs::path path = put("a", "old");
  for (const int64_t expected_bytes : {0, 10'000}) {
    EXPECT_EQ(run_in_child([&] { return write_past_size_limit(path, expected_bytes); }), 0);
    EXPECT_EQ(read_contents(path), "old");
    EXPECT_THAT(entries(folder()), ElementsAre("a"));
  }
}

// Mounts a small file system. The test is skipped if the system does not permit that.
int fill_small_disk(const fs::path& disk) {
  if (unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    return kSkippedStatus;
  }
  write_file(disk / "a", "old");
  std::string message;
  try {
    write_file(disk / "a", std::string(200'000, 'x'));
    return 1;
  } catch (const UserError& error) {
    message = error.what();
  }
  const bool is_unchanged =
      fs::file_size(disk / "a") == 3 && std::distance(fs::directory_iterator(disk), fs::directory_iterator()) == 1;
  const bool is_reported = message.find("No space left") != std::string::npos &&
                           message.find("needs 200000 bytes and 61440 bytes are free") != std::string::npos;
  return is_unchanged && is_reported ? 0 : 2;
}

TEST_F(WriteFile, KeepsTheOldFileOnAFullDisk) {
  const int status = run_in_child([&] { return fill_small_disk(folder()); });
  if (status == kSkippedStatus) {
    GTEST_SKIP() << "no permission to mount a file system";
  }
  EXPECT_EQ(status, 0);
}

TEST_F(WriteFile, ErrorsReportRequestedAndFreeBytes) {
  EXPECT_THAT(make_write_error(folder() / "a", ENOSPC, 123'456).what(),
              AllOf(HasSubstr((folder() / "a").string()), HasSubstr("No space left"), HasSubstr("123456 bytes"),
                    HasSubstr("are free"), HasSubstr("free space")));
  EXPECT_THAT(make_write_error("a", EDQUOT, 5).what(), AllOf(HasSubstr("quota"), HasSubstr("5 bytes")));
}

TEST_F(AtomicDirectoryTest, CommitsNestedFilesAndParents) {
  const fs::path destination_path = folder() / "runs" / "checkpoints" / "step-1";
  AtomicDirectory directory(destination_path);
  fs::create_directory(directory.path() / "trainer_state");
  write_file(directory.path() / "trainer_state" / "a", "x");
  EXPECT_FALSE(fs::exists(destination_path));
  directory.commit();
  EXPECT_EQ(read_contents(destination_path / "trainer_state" / "a"), "x");
  EXPECT_THAT(entries(destination_path.parent_path()), ElementsAre("step-1"));
  EXPECT_THROW(directory.commit(), InternalError);
}

TEST_F(AtomicDirectoryTest, ReplacesTheWholeFolder) {
  for (const char* name : {"old", "new"}) {
    AtomicDirectory directory(folder() / "d/");
    write_file(directory.path() / name, name);
    directory.commit();
  }
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("new"));
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
}

TEST_F(AtomicDirectoryTest, RemovesUncommittedFolders) {
  {
    const AtomicDirectory directory(folder() / "d");
    write_file(directory.path() / "a", "x");
  }
  EXPECT_THAT(entries(folder()), IsEmpty());
}

TEST_F(AtomicDirectoryTest, RefusesToReplaceAFile) {
  put("d", "x");
  EXPECT_THAT(get_error_message([&] { const AtomicDirectory directory(folder() / "d"); }, ExitCode::kFailed),
              HasSubstr("a file has that name"));
}

TEST_F(AtomicDirectoryTest, ReplacesInTwoStepsWhereNamesCannotBeExchanged) {
  fs::create_directories(folder() / "d" / "old");
  fs::create_directories(folder() / "fresh" / "new");
  const fs::path backup = replace_folder_in_two_steps(folder() / "fresh", folder() / "d");
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("new"));
  EXPECT_THAT(entries(backup), ElementsAre("old"));
}

TEST_F(AtomicDirectoryTest, RestoresTheOldFolderWhenRenamingFails) {
  fs::create_directories(folder() / "d" / "old");
  EXPECT_THAT(
      get_error_message([&] { replace_folder_in_two_steps(folder() / "none", folder() / "d"); }, ExitCode::kFailed),
      HasSubstr((folder() / "d").string()));
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("old"));
}

constexpr int kFiles = 8;

// Writes successive versions of a folder until it is killed. Each file of a version contains the
// number of the version. A byte in `ready_pipe` announces the first version.
[[noreturn]] void write_versions(const fs::path& destination_path, bool exchange, int ready_pipe) noexcept {
  for (int version = 0;; ++version) {
    if (version == 0 && write(ready_pipe, "x", 1) != 1) {
      _exit(1);
    }
    AtomicDirectory directory(destination_path);
    for (int i = 0; i < kFiles; ++i) {
      std::ofstream(directory.path() / fmt::format("{}", i)) << version;
    }
    if (exchange || !fs::exists(destination_path)) {
      directory.commit();
    } else {
      fs::remove_all(replace_folder_in_two_steps(directory.path(), destination_path));
    }
  }
}

class Killed : public TemporaryFolderTest, public testing::WithParamInterface<bool> {};

TEST_P(Killed, LeavesAWholeFolderAtEveryInstant) {
  const fs::path destination_path = folder() / "step";
  {
    AtomicDirectory first(destination_path);
    for (int i = 0; i < kFiles; ++i) {
      write_file(first.path() / fmt::format("{}", i), "first");
    }
    first.commit();
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(1, 4);  // 10 us to 10 ms: the steps differ as much
  std::array<int, 2> ready_pipe{};
  ASSERT_EQ(pipe(ready_pipe.data()), 0);
  int leftovers = 0;
  for (int round = 0; round < 100; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      write_versions(destination_path, GetParam(), ready_pipe[1]);
    }
    char signal_byte = 0;
    ASSERT_EQ(read(ready_pipe[0], &signal_byte, 1), 1);
    usleep(static_cast<useconds_t>(std::pow(10, exponent(random))));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    leftovers += entries(folder()).size() > 1 ? 1 : 0;
    clean_up_abandoned_temp_files(folder());
    ASSERT_THAT(entries(folder()), ElementsAre("step"));
    ASSERT_EQ(entries(destination_path).size(), kFiles);
    const std::string version = read_contents(destination_path / "0");
    for (int i = 0; i < kFiles; ++i) {
      ASSERT_EQ(read_contents(destination_path / fmt::format("{}", i)), version) << "round " << round;
    }
  }
  EXPECT_GT(leftovers, 5) << "the kills came too late or too early to test anything";
}

INSTANTIATE_TEST_SUITE_P(Replacing, Killed, testing::Bool(),
                         [](const auto& test) { return test.param ? "ByExchange" : "InTwoSteps"; });

}  // namespace
}  // namespace vlmtrain::io
