#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::io {

/// A data file that is read in pieces during a run. Each read opens the file, so a data set of ten
/// thousand shards has no open descriptors. A file that was replaced or truncated is detected.
/// Thread-safe.
class StoredFile {
 public:
  /// Throws data_error if the file cannot be read.
  explicit StoredFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Returns a hash of the path, size, times and inode, which changes when the file changes.
  uint64_t stamp() const { return stamp_; }

  /// Throws run_error if the file has changed.
  void check() const { OpenHandle(*this).check(); }
  /// Returns bytes of the file. Throws run_error if they cannot be read or the file has changed.
  /// REQUIRES: the range is within the file.
  std::string read(uint64_t offset, uint64_t bytes) const;

  /// An open descriptor for several reads. The StoredFile must outlive it.
  class OpenHandle {
   public:
    explicit OpenHandle(const StoredFile& file);
    OpenHandle(const OpenHandle&) = delete;
    OpenHandle& operator=(const OpenHandle&) = delete;
    ~OpenHandle();
    /// Same as the functions of StoredFile.
    void check() const;
    std::string read(uint64_t offset, uint64_t bytes) const;

   private:
    const StoredFile& file_;
    int descriptor_;
  };

 private:
  std::filesystem::path path_;
  uint64_t size_ = 0;
  uint64_t stamp_ = 0;
};

}  // namespace vlmtrain::io
