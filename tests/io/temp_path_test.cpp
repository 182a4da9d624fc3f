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
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class CleanUpTemporaries : public TemporaryFolderTest {};

TEST_F(CleanUpTemporaries, RestoresABackupOfADeadProcess) {
  fs::create_directories(folder() / "d" / "old");
  ASSERT_EQ(run_in_child([&] {
              const auto* new_folder = new AtomicDirectory(folder() / "d");  // not removed: the process dies
              fs::create_directory(new_folder->path() / "new");
              move_to_backup(folder() / "d");
              return 0;
            }),
            0);
  ASSERT_EQ(entries(folder()).size(), 2);
  clean_up_abandoned_temp_files(folder());
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
  clean_up_abandoned_temp_files(folder());
  EXPECT_THAT(entries(folder()), IsEmpty());
  waitpid(child, nullptr, 0);
}

TEST_F(CleanUpTemporaries, RemovesAReplacedBackup) {
  fs::create_directories(folder() / "d" / "old");
  fs::create_directories(folder() / "fresh" / "new");
  ASSERT_EQ(run_in_child([&] {
              replace_folder_in_two_steps(folder() / "fresh", folder() / "d");
              return 0;
            }),
            0);
  clean_up_abandoned_temp_files(folder());
  EXPECT_THAT(entries(folder()), ElementsAre("d"));
  EXPECT_THAT(entries(folder() / "d"), ElementsAre("new"));
}

TEST(TempPathTest, RoundTrips) {
  for (const TempPathKind kind : {TempPathKind::kNew, TempPathKind::kBackup, TempPathKind::kRemoving}) {
    const std::optional<TempPath> read = parse_temp_path(make_temp_path("runs/model.v1.safetensors", kind));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->destination_path, "runs/model.v1.safetensors");
    EXPECT_EQ(read->kind, kind);
    EXPECT_EQ(read->machine_id, get_machine_id());
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
  clean_up_abandoned_temp_files(folder());
  EXPECT_EQ(entries(folder()).size(), 4);
  EXPECT_TRUE(fs::exists(directory.path()));
  EXPECT_TRUE(fs::exists(backup));
  clean_up_abandoned_temp_files(folder() / "none");
}

// The system reuses process numbers. The start time identifies the process.
TEST_F(CleanUpTemporaries, RemovesFilesOfAnEarlierProcessWithTheSamePid) {
  put(fmt::format(".a.vlmtrain-new.{}.{}.12.0", get_machine_id(), getpid()), "");
  clean_up_abandoned_temp_files(folder());
  EXPECT_THAT(entries(folder()), IsEmpty());
}

TEST_F(CleanUpTemporaries, KeepsRecentFilesOfAnotherMachine) {
  put(".a.vlmtrain-new.elsewhere.7.12.0", "");
  fs::create_directory(folder() / ".d.vlmtrain-old.elsewhere.7.12.1");
  clean_up_abandoned_temp_files(folder());
  EXPECT_THAT(entries(folder()), ElementsAre(".a.vlmtrain-new.elsewhere.7.12.0", "d"));
}

TEST_F(CleanUpTemporaries, RemovesAFolderThatWasBeingRemoved) {
  ASSERT_EQ(run_in_child([&] {
              fs::create_directory(make_temp_path(folder() / "d", TempPathKind::kRemoving));
              return 0;
            }),
            0);
  ASSERT_EQ(entries(folder()).size(), 1);
  clean_up_abandoned_temp_files(folder());
  EXPECT_THAT(entries(folder()), IsEmpty());
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

using RemoveTempFiles = TemporaryFolderTest;

TEST_F(RemoveTempFiles, KeepsOnlyFinishedFiles) {
  write_file(folder() / "whole", "x");
  AtomicDirectory directory(folder() / "d");
  write_file(directory.path() / "a", "x");
  AtomicFile file(folder() / "f");
  file.write("x");
  std::thread late_writer;
  {
    const auto write_lock = lock_and_remove_temp_files();
    late_writer = std::thread([this] { write_file(folder() / "late", "x"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_THAT(entries(folder()), ElementsAre("whole")) << "as after a process that ends here";
  }
  late_writer.join();
  EXPECT_THAT(entries(folder()), ElementsAre("late", "whole"));
  // A writer that continues does not publish an incomplete file.
  EXPECT_THROW(directory.commit(), std::exception);
  EXPECT_THROW(file.commit(), UserError);
  EXPECT_THAT(entries(folder()), ElementsAre("late", "whole"));
}

}  // namespace
}  // namespace vlmtrain::io
