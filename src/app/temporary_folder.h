#pragma once

#include <filesystem>
#include <optional>

#include "vlmtrain/io/unfinished.h"

namespace vlmtrain::app {

/// A new folder below the system's folder for temporary files, removed with the object, or where a
/// signal ends the process. Throws UserError (kFailed).
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::optional<io::TempFileCleanup> cleanup_;
};

}  // namespace vlmtrain::app
