#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Returns the content of a file. Throws data_error if it is missing, not a regular file,
/// unreadable, or a Git LFS pointer, and run_error if the process lacks memory or descriptors.
std::string read_file(const std::filesystem::path& path);

/// Returns true if a file that starts with `first_bytes` (at least 40) is a Git LFS pointer: the
/// small text that a clone without `git lfs pull` has in place of a large file
/// (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
bool is_git_lfs_pointer(std::string_view first_bytes);

/// Throws data_error if is_git_lfs_pointer(first_bytes). The error names `path`.
void throw_if_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes);

/// A memory-mapped file, copy-on-write: changes to its pages are visible only in this process. The
/// file must not be truncated during the lifetime of the object. Reading is thread-safe.
class MappedFile {
 public:
  /// Maps the whole file. Throws data_error if it cannot be opened or is not a regular file, and
  /// run_error if the process lacks memory or descriptors.
  explicit MappedFile(const std::filesystem::path& path);
  /// Maps `bytes` bytes from `offset`, which need not be a multiple of the page size, or fewer if
  /// the file ends before.
  MappedFile(const std::filesystem::path& path, size_t offset, size_t bytes);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Returns the mapped bytes, or nullptr if size() is 0.
  std::byte* data() const { return mapping_ + padding_bytes_; }
  /// Returns the number of mapped bytes.
  size_t size() const { return size_; }
  /// Returns the memory of whole pages within a range of data() to the system. Changes to them are
  /// lost, and the next access reads the file again.
  void release_pages(size_t offset, size_t bytes) const;
  /// Returns the mapped bytes as text, valid during the lifetime of the object.
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), size_}; }
  /// Returns the size of the whole file.
  size_t file_bytes() const { return file_bytes_; }

 private:
  std::byte* mapping_ = nullptr;  // start of the mapping, a multiple of the page size
  size_t padding_bytes_ = 0;      // from the start of the mapping to the requested offset
  size_t size_ = 0;
  size_t file_bytes_ = 0;
};

/// A data file that is read in pieces during a run. Each read opens and closes the file, so that a
/// data set of ten thousand shards does not exceed the limit on open descriptors. A file that has
/// changed is detected. Thread-safe.
class DataFile {
 public:
  /// Stores the size and times of the file. Throws data_error if it cannot be read.
  explicit DataFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Returns a hash of the path, size, times and inode at construction. It identifies this version
  /// of the file.
  uint64_t version_hash() const { return version_hash_; }

  /// Throws run_error if the file has changed since construction.
  void check_unchanged() const { OpenHandle(*this).check_unchanged(); }
  /// Returns `bytes` bytes from `offset`. Throws run_error if they cannot be read or the file has
  /// changed. REQUIRES: the range is within the file.
  std::string read(uint64_t offset, uint64_t bytes) const;

  /// An open descriptor for several reads. The DataFile must outlive it.
  class OpenHandle {
   public:
    explicit OpenHandle(const DataFile& file);
    OpenHandle(const OpenHandle&) = delete;
    OpenHandle& operator=(const OpenHandle&) = delete;
    ~OpenHandle();
    // Same as the functions of DataFile.
    void check_unchanged() const;
    std::string read(uint64_t offset, uint64_t bytes) const;

   private:
    const DataFile& file_;
    int descriptor_;
  };

 private:
  std::filesystem::path path_;
  uint64_t size_ = 0;
  uint64_t version_hash_ = 0;
};

/// Returns the run_error for a failed write of `target_path`, with a suggestion. `error` is an
/// errno. `requested_bytes` is the intended size of the file, or 0 if unknown. The message names
/// the final path even if `target_path` is in a temporary folder, and the free space if the disk is
/// full.
UserError make_write_error(const std::filesystem::path& target_path, int error, int64_t requested_bytes);

/// Takes an exclusive lock on the whole file of `descriptor`, which must be open for writing,
/// without waiting. Returns 0 or an errno: EAGAIN or EACCES if the lock is held elsewhere. The lock
/// belongs to the open file description (F_OFD_SETLK): it ends when that is closed, and closing
/// another descriptor of the file does not release it. Works on NFS.
int lock_file(int descriptor);

/// Result of probe_folder().
struct FolderProbeResult {
  std::filesystem::path folder;  ///< the probed folder: the requested one or its nearest existing parent
  int64_t free_bytes = 0;        ///< available to this user; -1 if unknown
  std::string write_error;       ///< reason why a file could not be written, flushed and renamed; empty on success
  std::string lock_error;        ///< reason why the file could not be locked; empty on success
  double seconds = 0;            ///< duration of the probe
};

/// Writes, renames, locks and removes a file of 1 MiB in `folder`, as a run does: its lock prevents
/// a second run in the same folder. If `folder` does not exist, its nearest existing parent is
/// probed. Errors are returned, not thrown.
FolderProbeResult probe_folder(const std::filesystem::path& folder);

/// Returns true if `text` has the form `Owner/Name` of a repository on the Hugging Face Hub, and
/// the working directory has no folder `Owner`. Does not access the network.
bool is_hub_model_id(const std::string& text);

/// Returns the folder for cached files of this user: $VLMTRAIN_CACHE, else vlmtrain in
/// $XDG_CACHE_HOME or ~/.cache (XDG Base Directory Specification, which ignores relative paths).
/// Returns "" if no variable is set. The folder may not exist.
std::filesystem::path get_user_cache_folder();

/// Files compiled into the binary (cmake/Resources.cmake), by their path below the embedded folder.
/// The content lives as long as the program.
using EmbeddedResources = std::map<std::string, std::string_view, std::less<>>;

}  // namespace vlmtrain::io
