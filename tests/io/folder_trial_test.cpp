#include "vlmtrain/io/folder_trial.h"

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <cerrno>

#include "io/temporary_folder.h"
#include "vlmtrain/io/file_lock.h"

namespace vlmtrain::io {
namespace {

class FolderTrialTest : public TemporaryFolderTest {};

TEST_F(FolderTrialTest, WritesAndLeavesNothing) {
  const auto trial = try_folder(folder());
  EXPECT_EQ(trial.failure, "");
  EXPECT_EQ(trial.lock_failure, "");
  EXPECT_EQ(trial.folder, folder());
  EXPECT_GT(trial.free_bytes, 0);
  EXPECT_TRUE(entries(folder()).empty());
}

TEST_F(FolderTrialTest, OfAFolderThatIsNotThereIsWhereItWouldBeMade) {
  const auto trial = try_folder(folder() / "runs/first/");
  EXPECT_EQ(trial.folder, folder());
  EXPECT_EQ(trial.failure, "");
  EXPECT_TRUE(entries(folder()).empty()) << "it is not made";
}

TEST_F(FolderTrialTest, AFileInTheWayIsNamed) {
  put("runs", "a file");
  EXPECT_THAT(try_folder(folder() / "runs/first").failure, testing::HasSubstr("runs is no folder"));
  EXPECT_EQ(content_of(folder() / "runs"), "a file");
}

TEST_F(FolderTrialTest, WhereNothingCanBeWrittenIsAFailure) {
  EXPECT_THAT(try_folder("/proc/self").failure, testing::HasSubstr("/proc/self"));
}

TEST_F(FolderTrialTest, ALockedFileIsLockedOnce) {
  const auto path = put("file", "");
  const int one = open(path.c_str(), O_RDWR);
  const int other = open(path.c_str(), O_RDWR);
  EXPECT_EQ(lock_file(one), 0);
  EXPECT_EQ(lock_file(other), EAGAIN);
  close(one);
  EXPECT_EQ(lock_file(other), 0);
  close(other);
}

}  // namespace
}  // namespace vlmtrain::io
