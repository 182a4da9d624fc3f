#pragma once

#include <filesystem>
#include <mutex>

namespace vlmtrain::io {

/// Registers a file or folder that remove_temp_files() removes if the process exits before the object is destroyed.
/// Thread-safe.
class TempFileCleanup {
 public:
  explicit TempFileCleanup(std::filesystem::path path);
  ~TempFileCleanup();
  TempFileCleanup(const TempFileCleanup&) = delete;
  TempFileCleanup& operator=(const TempFileCleanup&) = delete;

 private:
  std::filesystem::path path_;
};

/// Removes all unfinished files and folders of AtomicFile, AtomicDirectory and TempFileCleanup, for a process that
/// exits while other threads still write. Committed files stay; uncommitted ones can no longer be committed. Threads
/// that begin or finish a file wait while the returned lock is held.
[[nodiscard]] std::unique_lock<std::mutex> remove_temp_files();

}  // namespace vlmtrain::io
