#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/torch_file.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
