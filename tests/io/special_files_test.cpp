#include <sys/stat.h>

#include <gmock/gmock.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A pipe that nobody writes to: who opens it waits for ever.
class SpecialFiles : public TemporaryFolderTest {
 protected:
  std::filesystem::path pipe(const std::string& name = "pipe") const {
    EXPECT_EQ(mkfifo((folder() / name).c_str(), 0600), 0);
    return folder() / name;
  }
};

TEST_F(SpecialFiles, AreNotReadAsText) {
  EXPECT_THAT(get_error_message([&] { read_file(pipe()); }),
              AllOf(HasSubstr((folder() / "pipe").string()), HasSubstr("is a named pipe; a file is wanted here")));
  EXPECT_THAT(get_error_message([&] { read_file("/dev/zero"); }), HasSubstr("/dev/zero is a device"));
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

// To rename a file over /dev/null would take it from everybody.
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

}  // namespace
}  // namespace vlmtrain::io
