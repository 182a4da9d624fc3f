#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace vlmtrain::io {

/// A memory-mapped file, copy-on-write: changes to its pages are visible only in this process.
class MappedFile {
 public:
  /// Maps the whole file. Throws data_error if it cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  /// Maps at most `bytes` bytes from any `offset`.
  MappedFile(const std::filesystem::path& path, size_t offset, size_t bytes);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::byte* data() const { return data_ + padding_bytes_; }
  size_t size() const { return size_; }
  /// Returns the memory of the pages within this range to the system. Changes to them are lost.
  void release(size_t offset, size_t bytes) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), size_}; }
  /// Returns the size of the whole file.
  size_t file_bytes() const { return file_bytes_; }

 private:
  std::byte* data_ = nullptr;  // start of the mapping, a multiple of the page size
  size_t padding_bytes_ = 0;   // from the start of the mapping to the requested offset
  size_t size_ = 0;
  size_t file_bytes_ = 0;
};

}  // namespace vlmtrain::io
