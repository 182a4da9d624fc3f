#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace vlmtrain::io {

/// A file that appears under its name only when it is whole and on the disk. It is written beside its place under a
/// temporary name; until commit() the old file, if any, is untouched, and without commit() it stays.
/// One thread at a time. Errors are run_error: they name the path, the system's reason and, where the disk is full, the
/// bytes wanted and the bytes free.
class AtomicFile {
 public:
  /// REQUIRES: the folder of `path` exists. `expected_bytes` of disk are reserved at once, where the file system can,
  /// so that a full disk is noticed before the writing; 0 reserves nothing.
  explicit AtomicFile(std::filesystem::path path, int64_t expected_bytes = 0);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view bytes);

  /// Flushes the content to the disk, gives the file its name, and flushes the folder.
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

/// Writes `content` to `path` with AtomicFile: after it, or after a crash, there is the old file or the new one.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Makes `path` a symbolic link to `target`, in place of the link or file that was there, at one instant. Errors as for
/// AtomicFile, also where the file system has no links.
void write_symlink(const std::filesystem::path& path, const std::filesystem::path& target);

/// A folder that appears under its name only when it is whole and on the disk, replacing the one that was there.
///
/// The files are written below path(), a temporary sibling. A process that is killed at any instant leaves the previous
/// folder whole: under its name or, where the file system cannot exchange two names in one step (NFS), set aside for
/// clean_up_temporaries() to bring back. One thread at a time; errors as for AtomicFile.
class AtomicDirectory {
 public:
  /// Creates the temporary folder, and the parents of `final_path`. Refuses a `final_path` that is not a folder.
  explicit AtomicDirectory(std::filesystem::path final_path);
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;
  /// Removes the temporary folder unless it was committed.
  ~AtomicDirectory();

  const std::filesystem::path& path() const { return temp_path_; }

  /// Flushes every file and folder in path() to the disk and gives it its final name. To be called once; path() is gone
  /// after it.
  void commit();

 private:
  std::filesystem::path final_path_;
  std::filesystem::path temp_path_;
};

/// Removes from `folder` (not from folders in it) what writers of this header left there when they were killed, and
/// brings back a folder that was set aside and not yet replaced. Does nothing where `folder` does not exist.
///
/// A temporary's name tells the machine, process and start time of its writer. That of a living process is left alone.
/// That of another machine, whose processes cannot be seen, is removed a day after it was last changed; a folder set
/// aside there is brought back at once, for a requeued job needs it. Safe to call from several processes.
void clean_up_temporaries(const std::filesystem::path& folder);

}  // namespace vlmtrain::io
