#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::io {

/// What came of writing into a folder as a run does.
struct FolderProbe {
  std::filesystem::path folder;  ///< that was written into: the one asked for, or the nearest above it that exists
  int64_t free_bytes = 0;        ///< for this user; -1: not known
  std::string failure;           ///< empty: a file was written, flushed to the disk, renamed and removed
  std::string lock_failure;      ///< empty: it was locked, which keeps a second run out of a run's folder
  double seconds = 0;
};

/// Writes, locks, renames and removes a small file; of a folder that does not exist in the nearest one above it, where
/// it would be made. Never throws; leaves nothing behind.
FolderProbe probe_folder(const std::filesystem::path& folder);

}  // namespace vlmtrain::io
