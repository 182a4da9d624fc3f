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

#include "io/files/file_error.h"
#include "io/files/temp_path.h"
#include "io/temporary_folder.h"
#include "vlmtrain/io/temp_cleanup.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kSkippedStatus = 77;

// Runs `action` in a child process, which ends without destructors, as a killed one does. Returns its exit status.
int run_in_child(const std::function<int()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = action();
    } catch (const std::exception& error) {
      fmt::print(stderr, "child: {}\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class WriteFile : public TemporaryFolderTest {};
class AtomicDirectoryTest : public TemporaryFolderTest {};
class CleanUpTemporaries : public TemporaryFolderTest {};

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

// A small file system of its own; where the system does not let a test mount one, it is skipped.
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
    GTEST_SKIP() << "no right to mount a file system";
  }
  EXPECT_EQ(status, 0);
}

TEST_F(WriteFile, ErrorsReportRequestedAndFreeBytes) {
  EXPECT_THAT(write_error(folder() / "a", ENOSPC, 123'456).what(),
              AllOf(HasSubstr((folder() / "a").string()), HasSubstr("No space left"), HasSubstr("123456 bytes"),
                    HasSubstr("are free"), HasSubstr("make room")));
  EXPECT_THAT(write_error("a", EDQUOT, 5).what(), AllOf(HasSubstr("quota"), HasSubstr("5 bytes")));
}

TEST_F(AtomicDirectoryTest, CommitsNestedFilesAndParents) {
  const fs::path final_path = folder() / "runs" / "checkpoints" / "step-1";
  AtomicDirectory directory(final_path);
  fs::create_directory(directory.path() / "trainer_state");
  write_file(directory.path() / "trainer_state" / "a", "x");
  EXPECT_FALSE(fs::exists(final_path));
  directory.commit();
  EXPECT_EQ(read_contents(final_path / "trainer_state" / "a"), "x");
  EXPECT_THAT(entries(final_path.parent_path()), ElementsAre("step-1"));
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
  const fs::path backup = replace_in_two_steps(folder() / "fresh", folder() / "d");
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("new"));
  EXPECT_THAT(entries(backup), ElementsAre("old"));
}

TEST_F(AtomicDirectoryTest, RestoresTheOldFolderWhenRenamingFails) {
  fs::create_directories(folder() / "d" / "old");
  EXPECT_THAT(get_error_message([&] { replace_in_two_steps(folder() / "none", folder() / "d"); }, ExitCode::kFailed),
              HasSubstr((folder() / "d").string()));
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("old"));
}

constexpr int kFiles = 8;

// Writes version after version of a folder, each of files that hold the version's number, until it is killed. Tells
// through the pipe `ready_pipe` when it has begun.
[[noreturn]] void write_versions(const fs::path& final_path, bool exchange, int ready_pipe) noexcept {
  for (int version = 0;; ++version) {
    if (version == 0 && write(ready_pipe, "x", 1) != 1) {
      _exit(1);
    }
    AtomicDirectory directory(final_path);
    for (int i = 0; i < kFiles; ++i) {
      std::ofstream(directory.path() / fmt::format("{}", i)) << version;
    }
    if (exchange || !fs::exists(final_path)) {
      directory.commit();
    } else {
      fs::remove_all(replace_in_two_steps(directory.path(), final_path));
    }
  }
}

class Killed : public TemporaryFolderTest, public testing::WithParamInterface<bool> {};

TEST_P(Killed, LeavesAWholeFolderAtEveryInstant) {
  const fs::path final_path = folder() / "step";
  {
    AtomicDirectory first(final_path);
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
      write_versions(final_path, GetParam(), ready_pipe[1]);
    }
    char signal_byte = 0;
    ASSERT_EQ(read(ready_pipe[0], &signal_byte, 1), 1);
    usleep(static_cast<useconds_t>(std::pow(10, exponent(random))));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    leftovers += entries(folder()).size() > 1 ? 1 : 0;
    clean_up_temporaries(folder());
    ASSERT_THAT(entries(folder()), ElementsAre("step"));
    ASSERT_EQ(entries(final_path).size(), kFiles);
    const std::string version = read_contents(final_path / "0");
    for (int i = 0; i < kFiles; ++i) {
      ASSERT_EQ(read_contents(final_path / fmt::format("{}", i)), version) << "round " << round;
    }
  }
  EXPECT_GT(leftovers, 5) << "the kills came too late or too early to test anything";
}

INSTANTIATE_TEST_SUITE_P(Replacing, Killed, testing::Bool(),
                         [](const auto& test) { return test.param ? "ByExchange" : "InTwoSteps"; });

TEST_F(CleanUpTemporaries, RestoresABackupOfADeadProcess) {
  fs::create_directories(folder() / "d" / "old");
  ASSERT_EQ(run_in_child([&] {
              const auto* new_folder = new AtomicDirectory(folder() / "d");  // not removed: the process dies
              fs::create_directory(new_folder->path() / "new");
              move_aside(folder() / "d");
              return 0;
            }),
            0);
  ASSERT_EQ(entries(folder()).size(), 2);
  clean_up_temporaries(folder());
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("old"));
}

TEST_F(CleanUpTemporaries, RemovesFilesOfAZombieProcess) {
  const pid_t child = fork();
  if (child == 0) {
    fs::create_directory(make_temp_path(folder() / "d", TempPathKind::kRemoving));
    raise(SIGKILL);
  }
  siginfo_t exit_info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &exit_info, WEXITED | WNOWAIT), 0);
  ASSERT_EQ(entries(folder()).size(), 1);
  clean_up_temporaries(folder());
  EXPECT_THAT(entries(folder()), IsEmpty());
  waitpid(child, nullptr, 0);
}

TEST_F(CleanUpTemporaries, RemovesAReplacedBackup) {
  fs::create_directories(folder() / "d" / "old");
  fs::create_directories(folder() / "fresh" / "new");
  ASSERT_EQ(run_in_child([&] {
              replace_in_two_steps(folder() / "fresh", folder() / "d");
              return 0;
            }),
            0);
  clean_up_temporaries(folder());
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("new"));
}

TEST(TempPathTest, RoundTrips) {
  for (const TempPathKind kind : {TempPathKind::kNew, TempPathKind::kBackup, TempPathKind::kRemoving}) {
    const std::optional<TempPath> read = parse_temp_path(make_temp_path("runs/model.v1.safetensors", kind));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->final_path, "runs/model.v1.safetensors");
    EXPECT_EQ(read->kind, kind);
    EXPECT_EQ(read->machine, get_machine_id());
    EXPECT_EQ(read->pid, getpid());
    EXPECT_TRUE(is_writer_alive(*read));
  }
  for (const char* invalid_name :
       {"", "a", ".a.b.c.d.e.f", "a.vlmtrain-new.m.1.2.3", "..vlmtrain-new.m.1.2", ".a.vlmtrain-new.m.1.2.x",
        ".a.vlmtrain-new.m.-1.2.3", ".a.vlmtrain-new..1.2.3", ".a.vlmtrain-tmp.m.1.2.3", ".vlmtrain-new.m.1.2.3"}) {
    EXPECT_FALSE(parse_temp_path(invalid_name).has_value()) << invalid_name;
  }
}

TEST_F(CleanUpTemporaries, KeepsFilesOfLiveProcessesAndUnknownFiles) {
  put(".d.vlmtrain-new.machine", "not a name of ours");
  put("model.safetensors.tmp", "");
  const AtomicDirectory directory(folder() / "d");
  const fs::path backup = make_temp_path(folder() / "e", TempPathKind::kBackup);
  fs::create_directory(backup);
  clean_up_temporaries(folder());
  EXPECT_EQ(entries(folder()).size(), 4);
  EXPECT_TRUE(fs::exists(directory.path()));
  EXPECT_TRUE(fs::exists(backup));
  clean_up_temporaries(folder() / "none");
}

// Process numbers come back; the start time tells that this is another process.
TEST_F(CleanUpTemporaries, RemovesFilesOfAnEarlierProcessWithTheSamePid) {
  put(fmt::format(".a.vlmtrain-new.{}.{}.12.0", get_machine_id(), getpid()), "");
  clean_up_temporaries(folder());
  EXPECT_THAT(entries(folder()), IsEmpty());
}

TEST_F(CleanUpTemporaries, KeepsRecentFilesOfAnotherMachine) {
  put(".a.vlmtrain-new.elsewhere.7.12.0", "");
  fs::create_directory(folder() / ".d.vlmtrain-old.elsewhere.7.12.1");
  clean_up_temporaries(folder());
  EXPECT_THAT(entries(folder()), ElementsAre(".a.vlmtrain-new.elsewhere.7.12.0", "d"));
}

using RemoveDirectory = TemporaryFolderTest;

TEST_F(RemoveDirectory, RemovesAFolderAndAcceptsAMissingOne) {
  fs::create_directories(folder() / "d" / "old");
  EXPECT_FALSE(remove_directory(folder() / "d").has_value());
  EXPECT_THAT(entries(folder()), IsEmpty());
  EXPECT_FALSE(remove_directory(folder() / "d").has_value());
}

TEST_F(RemoveDirectory, RetriesBusyFolders) {
  const int status = run_in_child([&] {
    fs::create_directories(folder() / "d" / "busy");
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kSkippedStatus;
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kSkippedStatus;
    if (mount("tmpfs", (folder() / "d" / "busy").c_str(), "tmpfs", 0, nullptr) != 0) return kSkippedStatus;
    const auto failure = remove_directory(folder() / "d");
    if (!failure || failure->reason.empty() || fs::exists(folder() / "d") || !fs::exists(failure->path)) return 1;
    const auto again = remove_directory(failure->path);
    if (!again || again->path != failure->path) return 2;
    if (umount((failure->path / "busy").c_str()) != 0) return 3;
    return remove_directory(failure->path) || !fs::is_empty(folder()) ? 4 : 0;
  });
  if (status == kSkippedStatus) GTEST_SKIP() << "no permission to mount a tmpfs";
  EXPECT_EQ(status, 0);
}

TEST_F(CleanUpTemporaries, RemovesAFolderThatWasBeingRemoved) {
  ASSERT_EQ(run_in_child([&] {
              fs::create_directory(make_temp_path(folder() / "d", TempPathKind::kRemoving));
              return 0;
            }),
            0);
  ASSERT_EQ(entries(folder()).size(), 1);
  clean_up_temporaries(folder());
  EXPECT_THAT(entries(folder()), IsEmpty());
}

using RemoveTempFiles = TemporaryFolderTest;

TEST_F(RemoveTempFiles, KeepsOnlyFinishedFiles) {
  write_file(folder() / "whole", "x");
  AtomicDirectory directory(folder() / "d");
  write_file(directory.path() / "a", "x");
  AtomicFile file(folder() / "f");
  file.write("x");
  std::thread late_writer;
  {
    const auto write_lock = remove_temp_files();
    late_writer = std::thread([this] { write_file(folder() / "late", "x"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_THAT(entries(folder()), ElementsAre("whole")) << "as a process would leave it that ends here";
  }
  late_writer.join();
  EXPECT_THAT(entries(folder()), ElementsAre("late", "whole"));
  // A writer that goes on gives nothing half a final name.
  EXPECT_THROW(directory.commit(), std::exception);
  EXPECT_THROW(file.commit(), UserError);
  EXPECT_THAT(entries(folder()), ElementsAre("late", "whole"));
}

}  // namespace
}  // namespace vlmtrain::io
