#pragma once

#include <filesystem>
#include <mutex>

namespace vlmtrain::io {

/// Names a file or folder that is to go if the process ends before its writer does. Safe in several threads.
class TempFileCleanup {
 public:
  explicit TempFileCleanup(std::filesystem::path path);
  ~TempFileCleanup();
  TempFileCleanup(const TempFileCleanup&) = delete;
  TempFileCleanup& operator=(const TempFileCleanup&) = delete;

 private:
  std::filesystem::path path_;
};

/// Removes all that is unfinished now, for a process that is about to end while its other threads go on. What they have
/// given its final name stays; what they have not does not get it any more. As long as the lock is held, who begins or
/// ends a file waits.
[[nodiscard]] std::unique_lock<std::mutex> remove_temp_files();

}  // namespace vlmtrain::io
