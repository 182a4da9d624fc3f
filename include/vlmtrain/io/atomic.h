#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "vlmtrain/base/hash.h"

namespace vlmtrain::io {

/// A file that gets its name only after it is complete and on the disk. It is written under a
/// temporary name in the same folder. The old file stays unchanged until commit(), and remains if
/// commit() is not called.
///
/// Not thread-safe: use an object from one thread at a time. All functions throw run_error with the
/// path and the system's reason, and with the requested and the free bytes if the disk is full.
class AtomicFile {
 public:
  /// Creates the temporary file and reserves `expected_bytes` on the disk if the file system
  /// supports it, so that a full disk is detected before writing. 0 reserves nothing. The file may
  /// become larger or smaller. Throws if `path` is a device or a pipe. REQUIRES: the folder of
  /// `path` exists.
  explicit AtomicFile(std::filesystem::path path, int64_t expected_bytes = 0);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Removes the temporary file unless it was committed.
  ~AtomicFile();

  /// Appends `bytes` to the temporary file. REQUIRES: commit() was not called, and no call failed.
  void write(std::string_view bytes);

  /// Flushes the content to the disk, renames the file to `path`, and flushes the folder. REQUIRES:
  /// called at most once, and no call failed before.
  void commit();

 private:
  void sync_and_close();
  void reserve_disk_space();
  [[noreturn]] void throw_write_error(int error);

  std::filesystem::path path_;
  std::filesystem::path temp_path_;
  int64_t expected_bytes_;
  int64_t written_bytes_ = 0;
  int descriptor_ = -1;
};

/// Writes `content` to `path` with AtomicFile. After a crash, `path` has either its old content or
/// all of `content`. Throws as AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Makes `path` a symbolic link to `target`, which need not exist. Replaces an existing link or
/// file atomically. Throws as AtomicFile, also if the file system does not support links.
void write_symlink(const std::filesystem::path& path, const std::filesystem::path& target);

/// A folder that gets its name only after it is complete and on the disk. It replaces an existing
/// folder.
///
/// The files are written below path(), a temporary folder next to the final one. A process that is
/// killed at any time leaves the previous folder complete: under its name, or under a backup name
/// that clean_up_abandoned_temp_files() restores if the file system cannot exchange two names
/// atomically (NFS). Not thread-safe: use an object from one thread at a time. Throws as
/// AtomicFile.
class AtomicDirectory {
 public:
  /// Creates the temporary folder and the parents of `destination_path`. Throws if
  /// `destination_path` exists and is not a folder.
  explicit AtomicDirectory(std::filesystem::path destination_path);
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
  std::filesystem::path destination_path_;
  std::filesystem::path temp_path_;
};

/// A folder that could not be removed completely.
struct RemovalFailure {
  std::filesystem::path path;  ///< the folder that still exists, perhaps under its temporary name
  std::string reason;          ///< the system's message
};

/// Removes a folder. It is renamed first, so that no partial folder is visible under its name.
/// Returns nothing if it was removed or did not exist. Does not throw.
///
/// A removal fails for mount points, and for files on NFS that another process has open. Another
/// call with RemovalFailure::path, or clean_up_abandoned_temp_files(), can remove the rest later.
std::optional<RemovalFailure> remove_directory(const std::filesystem::path& path);

/// Removes the temporary files and folders of killed writers from `folder`, but not from its
/// subfolders, and restores backups of folders that were not replaced. Does nothing if `folder`
/// does not exist.
///
/// The name of a temporary identifies the machine, pid and start time of its writer. Temporaries of
/// running processes stay. The processes of other machines are not visible, so their temporaries
/// are removed one day after the last change. Backups from other machines are restored at once,
/// because a requeued job needs them. Several processes may call this at the same time. Does not
/// throw.
void clean_up_abandoned_temp_files(const std::filesystem::path& folder);

/// A registration of a temporary file or folder: lock_and_remove_temp_files() removes it if the
/// process exits before the object is destroyed. Thread-safe.
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

/// Removes all unfinished files and folders of AtomicFile, AtomicDirectory and TempFileCleanup. To
/// be called before the process exits, even while other threads still write. Committed files stay;
/// uncommitted files can no longer be committed. While the caller holds the returned lock, threads
/// that create or commit a file wait. REQUIRES: the calling thread does not hold the lock.
[[nodiscard]] std::unique_lock<std::mutex> lock_and_remove_temp_files();

/// Size and XXH64 hash (seed 0) of a file's content.
struct Checksum {
  int64_t bytes = 0;  ///< size of the file
  uint64_t xxh64 = 0;

  bool operator==(const Checksum&) const = default;
};

/// Records the checksums of the files that AtomicFile commits on this thread during the lifetime of
/// the object. They are computed while the bytes are written, so no file is read again. If several
/// objects exist on a thread, the innermost one records.
class ChecksumRecorder {
 public:
  ChecksumRecorder();
  ChecksumRecorder(const ChecksumRecorder&) = delete;
  ChecksumRecorder& operator=(const ChecksumRecorder&) = delete;
  ~ChecksumRecorder();

  /// Returns the checksums of the committed files, by the paths that AtomicFile was given.
  const std::map<std::filesystem::path, Checksum>& checksums() const { return checksums_; }

  // Called by AtomicFile.

  /// Returns the innermost recorder of the calling thread, or nullptr.
  static ChecksumRecorder* get_current();
  /// Adds `bytes`, the next part of the content of `file`.
  void add(const AtomicFile& file, std::string_view bytes);
  /// Forgets a file that is not committed.
  void discard(const AtomicFile& file) { partial_checksums_.erase(&file); }
  /// Stores the checksum of a committed file under its final path, `path`.
  void commit(const AtomicFile& file, const std::filesystem::path& path);

 private:
  ChecksumRecorder* outer_recorder_;
  std::map<const AtomicFile*, std::pair<Xxh64, int64_t>> partial_checksums_;
  std::map<std::filesystem::path, Checksum> checksums_;
};

/// Reads a file and returns its checksum. Throws data_error if it cannot be read.
Checksum compute_checksum(const std::filesystem::path& file);

}  // namespace vlmtrain::io
