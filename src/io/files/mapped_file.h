#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace vlmtrain::io {

/// A file mapped into memory, copy-on-write: what is written to its pages stays in this process.
class MappedFile {
 public:
  /// data_error names the file where it cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  /// The bytes from `offset` on alone, or what there is of them; at any offset.
  MappedFile(const std::filesystem::path& path, size_t offset, size_t bytes);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::byte* data() const { return data_ + padding_bytes_; }
  size_t size() const { return size_; }
  /// Gives back the memory of the pages that lie wholly within these bytes: what was written there is lost.
  void release(size_t offset, size_t bytes) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), size_}; }
  /// Of the whole file.
  size_t file_bytes() const { return file_bytes_; }

 private:
  std::byte* data_ = nullptr;  // of the mapping, which begins at a page
  size_t padding_bytes_ = 0;   // of it, before the bytes that were asked for
  size_t size_ = 0;
  size_t file_bytes_ = 0;
};

}  // namespace vlmtrain::io
