#include "io/json_index.h"

#include <gtest/gtest.h>

#include "io/temporary_folder.h"

namespace vlmtrain::io {
namespace {

using JsonIndex = TemporaryFolderTest;

JsonPlaces some_places() {
  JsonPlaces places;
  places.are_lines = true;
  places.begins = {0, 10, uint64_t{1} << 40};
  places.lines = {1, 2, 7};
  places.end = (uint64_t{1} << 40) + 5;
  return places;
}

TEST_F(JsonIndex, KeepsPlacesFromOneStartToTheNext) {
  const auto index = folder() / "below/index";
  const JsonPlaces places = some_places();
  EXPECT_FALSE(read_json_index(index, 17, places.end));
  write_json_index(index, 17, places);
  const auto read = read_json_index(index, 17, places.end);
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->are_lines);
  EXPECT_EQ(read->begins, places.begins);
  EXPECT_EQ(read->lines, places.lines);
  EXPECT_EQ(read->end, places.end);
  EXPECT_FALSE(read_json_index(index, 18, places.end)) << "of another state of the file";
  EXPECT_FALSE(read_json_index(index, 17, places.end - 1)) << "beyond the file's end";
}

TEST_F(JsonIndex, ADamagedOneIsNone) {
  const auto index = folder() / "index";
  write_json_index(index, 17, some_places());
  const std::string whole = content_of(index);
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1);
    put("index", damaged);
    EXPECT_FALSE(read_json_index(index, 17, some_places().end)) << byte;
  }
  for (const size_t bytes : {size_t{0}, size_t{10}, whole.size() - 1}) {
    put("index", whole.substr(0, bytes));
    EXPECT_FALSE(read_json_index(index, 17, some_places().end));
  }
  std::filesystem::remove(index);
  std::filesystem::create_directory(index);
  EXPECT_FALSE(read_json_index(index, 17, some_places().end));
  write_json_index(index, 17, some_places());
}

}  // namespace
}  // namespace vlmtrain::io
