#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// A file that gets its name only after it is complete and on the disk. It is written under a
/// temporary name in the same folder. The old file stays unchanged until commit(), and remains if
/// commit() is not called.
///
/// One thread at a time. All functions throw run_error that names the path and the system's reason,
/// and the requested and the free bytes if the disk is full.
class AtomicFile {
 public:
  /// Reserves `expected_bytes` on the disk if the file system supports it, so that a full disk is
  /// detected before writing. 0 reserves nothing. REQUIRES: the folder of `path` exists.
  explicit AtomicFile(std::filesystem::path path, int64_t expected_bytes = 0);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Removes the temporary file unless it was committed.
  ~AtomicFile();

  /// Appends `bytes` to the temporary file.
  void write(std::string_view bytes);

  /// Flushes the content to the disk, renames the file to its name, and flushes the folder.
  /// REQUIRES: called at most once.
  void commit();

 private:
  void sync_and_close();
  void reserve();
  [[noreturn]] void fail(int error);

  std::filesystem::path path_;
  std::filesystem::path temp_path_;
  int64_t expected_bytes_;
  int64_t written_bytes_ = 0;
  int descriptor_ = -1;
};

/// Writes `content` to `path` with AtomicFile. After a crash, `path` is the old file or the new
/// one.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Makes `path` a symbolic link to `target`. Replaces an existing link or file atomically. Throws
/// as AtomicFile, also if the file system has no links.
void write_symlink(const std::filesystem::path& path, const std::filesystem::path& target);

/// A folder that gets its name only after it is complete and on the disk. It replaces an existing
/// folder.
///
/// The files are written below path(), a temporary folder next to the final one. A process that is
/// killed at any time leaves the previous folder complete: under its name, or under a backup name
/// that clean_up_temporaries() restores if the file system cannot exchange two names atomically
/// (NFS). One thread at a time. Throws as AtomicFile.
class AtomicDirectory {
 public:
  /// Creates the temporary folder and the parents of `final_path`. Throws if `final_path` is not a
  /// folder.
  explicit AtomicDirectory(std::filesystem::path final_path);
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;
  /// Removes the temporary folder unless it was committed.
  ~AtomicDirectory();

  /// Returns the temporary folder.
  const std::filesystem::path& path() const { return temp_path_; }

  /// Flushes every file and folder in path() to the disk and gives the folder its final name.
  /// path() is empty afterwards. REQUIRES: called at most once.
  void commit();

 private:
  std::filesystem::path final_path_;
  std::filesystem::path temp_path_;
};

/// A folder that could not be removed completely.
struct RemovalFailure {
  std::filesystem::path path;  ///< of the rest
  std::string reason;
};

/// Removes a folder. It is renamed first, so that no partial folder is visible under its name.
/// Returns nothing if it was removed or did not exist.
///
/// Files that another process has open on NFS and mount points cannot be removed. Another call with
/// the returned path, or clean_up_temporaries(), removes the rest later.
std::optional<RemovalFailure> remove_directory(const std::filesystem::path& path);

/// Removes the temporary files and folders of killed writers from `folder`, but not from its
/// subfolders, and restores backups of folders that were not replaced. Does nothing if `folder`
/// does not exist.
///
/// The name of a temporary identifies the machine, pid and start time of its writer. Temporaries of
/// running processes stay. Those of other machines, whose processes are not visible, are removed
/// one day after their last change; their backups are restored at once, because a requeued job
/// needs them. Safe to call from several processes.
void clean_up_temporaries(const std::filesystem::path& folder);

/// Registers a file or folder that remove_temp_files() removes if the process exits before the
/// object is destroyed. Thread-safe.
class TempFileCleanup {
 public:
  /// Registers `path`, which does not need to exist yet.
  explicit TempFileCleanup(std::filesystem::path path);
  /// Unregisters the path. Does not remove the file.
  ~TempFileCleanup();
  TempFileCleanup(const TempFileCleanup&) = delete;
  TempFileCleanup& operator=(const TempFileCleanup&) = delete;

 private:
  std::filesystem::path path_;
};

/// Removes all unfinished files and folders of AtomicFile, AtomicDirectory and TempFileCleanup, for
/// a process that exits while other threads still write. Committed files stay; uncommitted ones can
/// no longer be committed. Threads that begin or finish a file wait while the returned lock is
/// held.
[[nodiscard]] std::unique_lock<std::mutex> remove_temp_files();

}  // namespace vlmtrain::io
