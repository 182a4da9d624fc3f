#include "vlmtrain/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/io/torch_file.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FolderProbeTest : public TemporaryFolderTest {};

TEST_F(FolderProbeTest, LeavesNoFiles) {
  const auto probe = probe_folder(folder());
  EXPECT_EQ(probe.write_error, "");
  EXPECT_EQ(probe.lock_error, "");
  EXPECT_EQ(probe.folder, folder());
  EXPECT_GT(probe.free_bytes, 0);
  EXPECT_TRUE(entries(folder()).empty());
}

TEST_F(FolderProbeTest, ProbesTheNearestExistingParent) {
  const auto probe = probe_folder(folder() / "runs/first/");
  EXPECT_EQ(probe.folder, folder());
  EXPECT_EQ(probe.write_error, "");
  EXPECT_TRUE(entries(folder()).empty()) << "it is not created";
}

TEST_F(FolderProbeTest, ReportsAFileInThePath) {
  put("runs", "a file");
  EXPECT_THAT(probe_folder(folder() / "runs/first").write_error, testing::HasSubstr("runs is not a folder"));
  EXPECT_EQ(read_contents(folder() / "runs"), "a file");
}

TEST_F(FolderProbeTest, ReportsUnwritableFolders) {
  EXPECT_THAT(probe_folder("/proc/self").write_error, testing::HasSubstr("/proc/self"));
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

/// Fixture with a named pipe. It has no writer, so that opening it would block forever.
class SpecialFiles : public TemporaryFolderTest {
 protected:
  std::filesystem::path pipe(const std::string& name = "pipe") const {
    EXPECT_EQ(mkfifo((folder() / name).c_str(), 0600), 0);
    return folder() / name;
  }
};

TEST_F(SpecialFiles, AreNotReadAsText) {
  EXPECT_THAT(get_error_message([&] { read_file(pipe()); }),
              AllOf(HasSubstr((folder() / "pipe").string()), HasSubstr("is a named pipe; give a file")));
  EXPECT_THAT(get_error_message([&] { read_file("/dev/zero"); }), HasSubstr("/dev/zero: is a device"));
}

TEST_F(SpecialFiles, AreNoDataSets) {
  EXPECT_THAT(get_error_message([&] { read_dataset(pipe()); }), HasSubstr("is a named pipe"));
  EXPECT_THAT(get_error_message([&] { read_dataset("/dev/zero"); }), HasSubstr("is a device"));
  EXPECT_THAT(get_error_message([&] { read_dataset(folder()); }), HasSubstr("is a folder"));
}

TEST_F(SpecialFiles, AreNoWeights) {
  pipe("model.safetensors");
  EXPECT_THAT(get_error_message([&] { CheckpointTensors weights(folder()); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("is a named pipe")));
}

// A rename onto /dev/null would remove the device for all processes.
TEST_F(SpecialFiles, AreNotReplacedByAFile) {
  const auto existing_pipe = pipe();
  EXPECT_THAT(get_error_message([&] { write_file(existing_pipe, "x"); }, ExitCode::kFailed),
              HasSubstr("is a named pipe"));
  EXPECT_TRUE(std::filesystem::is_fifo(existing_pipe));
  for (const char* device : {"/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}) {
    EXPECT_THAT(get_error_message([&] { write_file(device, "x"); }, ExitCode::kFailed), HasSubstr("is a device"))
        << device;
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

constexpr const char* kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";

TEST(LfsPointer, IsReportedByEveryReader) {
  const parity::TemporaryFolder folder;
  const auto expect_pointer_error = [&](const char* name, const auto& read) {
    write_file(folder.path() / name, kPointer);
    const auto message = get_error_message([&] { read(folder.path() / name); });
    EXPECT_THAT(message, AllOf(HasSubstr((folder.path() / name).string()), HasSubstr("is a Git LFS pointer"),
                               HasSubstr("git lfs pull")));
  };
  expect_pointer_error("config.json", [](const auto& path) { read_json(path); });
  expect_pointer_error("generation_config.json", [](const auto& path) { read_ordered_json(path); });
  expect_pointer_error("chat_template.jinja", [](const auto& path) { read_file(path); });
  expect_pointer_error("weights.pt", [](const auto& path) { read_torch_file(path); });
  expect_pointer_error("model.safetensors.index.json",
                       [](const auto& path) { CheckpointTensors weights(path.parent_path()); });
  expect_pointer_error("model.safetensors", [](const auto& path) { CheckpointTensors weights(path.parent_path()); });
}

TEST(LfsPointer, OtherTextsAreNotPointers) {
  for (const char* text : {"", "version", "version https://example.org/", "{}", "\n version https://git-lfs"}) {
    EXPECT_FALSE(is_git_lfs_pointer(text)) << text;
  }
}

}  // namespace
}  // namespace vlmtrain::io
