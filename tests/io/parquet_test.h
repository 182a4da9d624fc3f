#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/dataset/record_files.h"
#include "io/temporary_folder.h"

namespace vlmtrain::io {

/// Returns a file of tests/io/data.
inline std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/io/data" / name;
}

/// Fixture that skips the test if the build has no Parquet plug-in. The message explains how to
/// build it.
class ParquetTest : public TemporaryFolderTest {
 protected:
  void SetUp() override {
    TemporaryFolderTest::SetUp();
    try {
      open_row_file(golden_path("cauldron.parquet"));
    } catch (const UserError& error) {
      ASSERT_THAT(error.what(), testing::HasSubstr("run scripts/setup.sh to download Arrow"));
      GTEST_SKIP() << error.what();
    }
  }
};

}  // namespace vlmtrain::io
