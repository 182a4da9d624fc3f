#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <vector>

namespace vlmtrain::image {

/// Where a header is read from: memory, or a file of which only the asked bytes are read.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Fills `out` with the bytes from `offset` on; false where the source ends before.
  virtual bool read(uint64_t offset, std::span<uint8_t> out) = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool read(uint64_t offset, std::span<uint8_t> out) override;

 private:
  std::span<const std::byte> bytes_;
};

/// A data error unless `path` is a file; `description` is it meant to hold: the picture, the video. Opens nothing.
void check_is_file(const std::filesystem::path& path, std::string_view description);

class FileSource final : public ByteSource {
 public:
  /// A data error where the file cannot be opened.
  explicit FileSource(const std::filesystem::path& path);
  bool read(uint64_t offset, std::span<uint8_t> out) override;

 private:
  std::ifstream file_;
};

/// The content of a file that holds a picture. A data error where it cannot be opened or read.
std::vector<std::byte> read_file_bytes(const std::filesystem::path& path);

}  // namespace vlmtrain::image
