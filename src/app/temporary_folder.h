#pragma once

#include <filesystem>

namespace vlmtrain::app {

/// A new folder below the system's folder for temporary files, removed with the object. Throws UserError (kFailed).
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace vlmtrain::app
