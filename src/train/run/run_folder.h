#pragma once

#include <filesystem>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Whether the run is on a virtual card: all is done but arithmetic, so there are no values and nothing to save.
bool is_dry_run();

/// output.dir; of a rehearsal a folder in it, away from the run's own results.
std::filesystem::path get_run_folder(const Config& config);

/// Creates `folder` and the folders above it. Throws UserError: kUsage where a file has one of their names, else
/// kFailed.
void create_run_folder(const std::filesystem::path& folder);

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
