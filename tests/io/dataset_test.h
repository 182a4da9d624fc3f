#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/temporary_folder.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Fixture of tests that read a data set from JSON text.
class ReadDataset : public TemporaryFolderTest {
 protected:
  std::vector<Record> read(std::string_view content) const { return read_dataset(put("train.llava.json", content)); }

  Record read_one(std::string_view record) const {
    std::vector<Record> records = read(fmt::format("[{}]", record));
    EXPECT_EQ(records.size(), 1);
    return records.at(0);
  }

  // Reads a record with one listed image and these turns, given as JSON.
  Record read_with_turns(std::string_view turns) const {
    return read_one(fmt::format(R"({{"image": "a.jpg", "conversations": [{}]}})", turns));
  }

  std::string get_error(std::string_view content) const {
    return get_error_message([&] { read(content); });
  }
};

/// A record without media.
inline constexpr std::string_view kTextRecord =
    R"({"conversations": [{"from":"human","value":"Q"},{"from":"gpt","value":"A"}]})";

}  // namespace vlmtrain::io
