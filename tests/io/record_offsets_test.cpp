#include "io/dataset/record_offsets.h"

#include <gtest/gtest.h>

#include "io/temporary_folder.h"

namespace vlmtrain::io {
namespace {

using JsonIndex = TemporaryFolderTest;

RecordOffsets make_offsets() {
  RecordOffsets offsets;
  offsets.is_json_lines = true;
  offsets.begin_offsets = {0, 10, uint64_t{1} << 40};
  offsets.line_numbers = {1, 2, 7};
  offsets.end = (uint64_t{1} << 40) + 5;
  return offsets;
}

TEST_F(JsonIndex, KeepsOffsetsAcrossRuns) {
  const auto index = folder() / "below/index";
  const RecordOffsets offsets = make_offsets();
  EXPECT_FALSE(read_json_index(index, 17, offsets.end));
  write_json_index(index, 17, offsets);
  const auto read = read_json_index(index, 17, offsets.end);
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->is_json_lines);
  EXPECT_EQ(read->begin_offsets, offsets.begin_offsets);
  EXPECT_EQ(read->line_numbers, offsets.line_numbers);
  EXPECT_EQ(read->end, offsets.end);
  EXPECT_FALSE(read_json_index(index, 18, offsets.end)) << "of another state of the file";
  EXPECT_FALSE(read_json_index(index, 17, offsets.end - 1)) << "beyond the file's end";
}

TEST_F(JsonIndex, IgnoresDamagedIndexes) {
  const auto index = folder() / "index";
  write_json_index(index, 17, make_offsets());
  const std::string content = read_contents(index);
  for (size_t i = 0; i < content.size(); ++i) {
    std::string damaged = content;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    put("index", damaged);
    EXPECT_FALSE(read_json_index(index, 17, make_offsets().end)) << i;
  }
  for (const size_t bytes : {size_t{0}, size_t{10}, content.size() - 1}) {
    put("index", content.substr(0, bytes));
    EXPECT_FALSE(read_json_index(index, 17, make_offsets().end));
  }
  std::filesystem::remove(index);
  std::filesystem::create_directory(index);
  EXPECT_FALSE(read_json_index(index, 17, make_offsets().end));
  write_json_index(index, 17, make_offsets());
}

}  // namespace
}  // namespace vlmtrain::io
