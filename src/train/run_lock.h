#pragma once

#include <filesystem>

namespace vlmtrain::train {

/// Holds a run's folder for this process: a lock on the file run.lock in it, which the system gives up when the process
/// ends, however it ends. The file stays; it says who holds the lock, or held it last.
class RunLock {
 public:
  /// Throws UserError (kUsage) that names the process where another run has the folder, and kFailed where the file
  /// cannot be written. A file system without locks is a warning.
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace vlmtrain::train
