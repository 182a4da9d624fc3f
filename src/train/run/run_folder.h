#pragma once

#include <filesystem>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns whether the run is a dry run on a virtual GPU, which executes everything except
/// arithmetic. Such a run has no results and saves no weights.
bool is_dry_run();

/// Returns output.dir or, for a dry run, its subfolder virtual-NAME, so that the dry run does not
/// overwrite the results of a real run.
std::filesystem::path get_run_folder(const Config& config);

/// Creates `folder` and its parents. Throws UserError: kUsage if one of them exists as a file,
/// kFailed for other errors.
void create_run_folder(const std::filesystem::path& folder);

/// A lock of a run's folder: a file lock on run.lock, which the operating system releases when the
/// process ends, also if it is killed. The file remains and names the newest holder.
class RunLock {
 public:
  /// Locks the folder without waiting. Throws UserError: kUsage, with the holder, if another run
  /// has locked it, and kFailed if the file cannot be written. Warns if the file system does not
  /// support locks.
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace vlmtrain::train
