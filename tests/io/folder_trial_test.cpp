#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <cerrno>

#include "io/temporary_folder.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {
namespace {

class FolderProbeTest : public TemporaryFolderTest {};

TEST_F(FolderProbeTest, LeavesNoFiles) {
  const auto probe = probe_folder(folder());
  EXPECT_EQ(probe.failure, "");
  EXPECT_EQ(probe.lock_failure, "");
  EXPECT_EQ(probe.folder, folder());
  EXPECT_GT(probe.free_bytes, 0);
  EXPECT_TRUE(entries(folder()).empty());
}

TEST_F(FolderProbeTest, ProbesTheNearestExistingParent) {
  const auto probe = probe_folder(folder() / "runs/first/");
  EXPECT_EQ(probe.folder, folder());
  EXPECT_EQ(probe.failure, "");
  EXPECT_TRUE(entries(folder()).empty()) << "it is not made";
}

TEST_F(FolderProbeTest, ReportsAFileInThePath) {
  put("runs", "a file");
  EXPECT_THAT(probe_folder(folder() / "runs/first").failure, testing::HasSubstr("runs is no folder"));
  EXPECT_EQ(read_contents(folder() / "runs"), "a file");
}

TEST_F(FolderProbeTest, ReportsUnwritableFolders) {
  EXPECT_THAT(probe_folder("/proc/self").failure, testing::HasSubstr("/proc/self"));
}

TEST_F(FolderProbeTest, ALockedFileIsLockedOnce) {
  const auto path = put("file", "");
  const int first_descriptor = open(path.c_str(), O_RDWR);
  const int second_descriptor = open(path.c_str(), O_RDWR);
  EXPECT_EQ(lock_file(first_descriptor), 0);
  EXPECT_EQ(lock_file(second_descriptor), EAGAIN);
  close(first_descriptor);
  EXPECT_EQ(lock_file(second_descriptor), 0);
  close(second_descriptor);
}

}  // namespace
}  // namespace vlmtrain::io
