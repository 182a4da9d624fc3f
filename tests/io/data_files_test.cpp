#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DataFiles : public TemporaryFolderTest {
 protected:
  std::vector<std::string> names(const std::string& path) const {
    std::vector<std::string> names;
    for (const auto& file : find_data_files(folder() / path)) names.push_back(file.filename().string());
    return names;
  }
};

TEST_F(DataFiles, ShardExtensionsAreCaseInsensitive) {
  for (const char* extension : {".JSONL", ".Parquet", ".TAR"}) {
    const std::string set = std::string("set") + extension;
    std::filesystem::create_directory(folder() / set);
    put(set + "/b-10" + extension, "");
    put(set + "/b-2" + extension, "");
    put(set + "/notes.md", "");
    EXPECT_THAT(names(set), ElementsAre("b-2" + std::string(extension), "b-10" + std::string(extension)));
  }
}

TEST_F(DataFiles, HiddenFilesAreSkipped) {
  for (const char* name : {"a.jsonl", "._a.jsonl", ".DS_Store", "Thumbs.db", "desktop.ini"}) put(name, "");
  EXPECT_THAT(names(""), ElementsAre("a.jsonl"));
  EXPECT_THAT(names("*.jsonl"), ElementsAre("a.jsonl"));
  EXPECT_THAT(names("{a,b}*.jsonl"), ElementsAre("a.jsonl"));
}

TEST_F(DataFiles, CompressedFilesAndLfsPointersAreErrors) {
  const auto get_error = [&](const std::string& name, std::string_view content) {
    return get_error_message([&] { open_records(put(name, content), {}); });
  };
  for (const char* name : {"a.jsonl.gz", "a.json", "a.tar.gz"}) {
    EXPECT_THAT(get_error(name, "\x1F\x8B\x08 more"), HasSubstr("compressed with gzip; unpack it first"));
  }
  for (const char* name : {"a.json", "a.jsonl", "a.parquet", "a.tar"}) {
    EXPECT_THAT(get_error(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"),
                HasSubstr("is a Git LFS pointer"));
  }
}

}  // namespace
}  // namespace vlmtrain::io
