#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::io {

/// A file that is read piece by piece over a run. It is opened for each piece, so that a data set of ten thousand
/// shards holds no descriptor open, and so that a file that was replaced or shortened in the meantime is an error and
/// not somebody else's bytes. Thread-safe.
class StoredFile {
 public:
  /// data_error names the file where it cannot be read.
  explicit StoredFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Tells the file from what it was: a hash of its path, size, times and inode.
  uint64_t stamp() const { return stamp_; }

  /// run_error where it is no longer as it was.
  void check() const { OpenHandle(*this).check(); }
  /// REQUIRES: the bytes lie within the file. run_error where it cannot be read, or is no longer as it was.
  std::string read(uint64_t offset, uint64_t bytes) const;

  /// The file opened once for many pieces; the StoredFile must outlive it.
  class OpenHandle {
   public:
    explicit OpenHandle(const StoredFile& file);
    OpenHandle(const OpenHandle&) = delete;
    OpenHandle& operator=(const OpenHandle&) = delete;
    ~OpenHandle();
    /// As those of StoredFile.
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
