#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {
namespace {

class ChecksumsTest : public TemporaryFolderTest {};

TEST_F(ChecksumsTest, MatchTheFilesOnDisk) {
  const ChecksumRecorder recorder;
  write_file(folder() / "empty.json", "");
  write_file(folder() / "text.json", "{\"a\": 1}");
  write_safetensors(folder() / "weights.safetensors", NamedTensors{{"a", at::ones({100, 7})}, {"b", at::ones({3})}});
  ASSERT_EQ(recorder.checksums().size(), 3U);
  for (const auto& [path, checksum] : recorder.checksums()) {
    EXPECT_EQ(checksum, compute_checksum(path)) << path;
    EXPECT_EQ(checksum.bytes, std::filesystem::file_size(path));
  }
}

TEST_F(ChecksumsTest, AreRecordedPerThreadByTheInnermostRecorder) {
  const ChecksumRecorder outer;
  {
    const ChecksumRecorder inner;
    write_file(folder() / "inner", "1");
    EXPECT_EQ(inner.checksums().size(), 1U);
  }
  std::thread([this] { write_file(folder() / "elsewhere", "2"); }).join();
  {
    AtomicFile abandoned(folder() / "abandoned");
    abandoned.write("of which nothing may enter the next one");
  }
  write_file(folder() / "outer", "3");
  ASSERT_EQ(outer.checksums().size(), 1U);
  EXPECT_EQ(outer.checksums().begin()->first, folder() / "outer");
  EXPECT_EQ(outer.checksums().begin()->second, compute_checksum(folder() / "outer"));
}

TEST_F(ChecksumsTest, MissingFilesAreAnError) {
  EXPECT_THROW(compute_checksum(folder() / "nothing"), UserError);
  EXPECT_THROW(compute_checksum(folder()), UserError);
}

}  // namespace
}  // namespace vlmtrain::io
