#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "vlmtrain/base/error.h"

namespace vlmtrain::parity {

/// Empty folder, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_XXXXXX").string();
    VLMTRAIN_CHECK(mkdtemp(pattern.data()) != nullptr, "no temporary folder {}", pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace vlmtrain::parity
