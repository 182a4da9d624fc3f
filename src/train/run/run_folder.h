#pragma once

#include <filesystem>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns whether the run is a dry run on a virtual GPU: everything but arithmetic happens, so
/// that there are no values and nothing to save.
bool is_dry_run();

/// Returns output.dir or, for a dry run, a folder in it, so that the run's own results stay.
std::filesystem::path get_run_folder(const Config& config);

/// Creates `folder` and the folders above it. Throws UserError: kUsage if a file has one of their names, else
/// kFailed.
void create_run_folder(const std::filesystem::path& folder);

/// Lock of a run's folder: a file lock on run.lock, which the system releases when the process
/// ends, however it ends. The file stays; it names the newest holder.
class RunLock {
 public:
  /// Throws UserError: kUsage, with the holder, if another run has the folder, and kFailed if
  /// the file cannot be written. Warns if the file system has no locks.
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace vlmtrain::train
