#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

/// A random-access source of bytes for reading headers.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` with the bytes that start at `offset`. Returns false if the source has fewer
  /// bytes; the content of `out` is then undefined.
  virtual bool read(uint64_t offset, std::span<uint8_t> out) = 0;
  /// Returns the number of bytes of the source.
  virtual uint64_t size() const = 0;
};

/// A source in memory. The bytes must outlive the object.
class MemoryByteSource final : public ByteSource {
 public:
  explicit MemoryByteSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool read(uint64_t offset, std::span<uint8_t> out) override;
  uint64_t size() const override { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

/// A file. Reads only the requested bytes.
class FileByteSource final : public ByteSource {
 public:
  /// Throws UserError (kBadData) if the file cannot be opened.
  explicit FileByteSource(const std::filesystem::path& path);
  bool read(uint64_t offset, std::span<uint8_t> out) override;
  uint64_t size() const override { return size_; }

 private:
  std::ifstream file_;
  uint64_t size_ = 0;
};

/// The position in a source of a library that reads a file sequentially. Its methods do not throw,
/// so that C libraries can call them. The source must outlive the object.
class ByteStream {
 public:
  explicit ByteStream(ByteSource& source) : source_(source) {}

  /// Reads up to out.size() bytes and returns their number.
  size_t read(std::span<uint8_t> out);
  void seek(uint64_t position) { position_ = position; }
  uint64_t position() const { return position_; }
  uint64_t size() const { return source_.size(); }

 private:
  ByteSource& source_;
  uint64_t position_ = 0;
};

/// Returns the UserError (kBadData) for a file that cannot be opened. `description` names the file
/// in the message, such as "the video". `error` is an errno.
UserError make_open_error(const std::filesystem::path& path, std::string_view description, int error);

/// Throws UserError (kBadData) unless `path` is a regular file. Does not open it.
/// `description`: see make_open_error().
void check_is_regular_file(const std::filesystem::path& path, std::string_view description);

/// Returns the content of an image file. Throws UserError (kBadData) if it cannot be opened or
/// read.
std::vector<std::byte> read_file_bytes(const std::filesystem::path& path);

}  // namespace vlmtrain::image
