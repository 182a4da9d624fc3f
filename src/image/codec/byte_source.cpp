#include "image/codec/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::image {

bool MemoryByteSource::read(uint64_t offset, std::span<uint8_t> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) return false;
  // memcpy must not get a null pointer, which an empty span may have.
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return true;
}

UserError make_open_error(const std::filesystem::path& path, std::string_view description, int error) {
  return data_error("{}: cannot open {} ({}); check the path and {}", path.string(), description,
                    std::generic_category().message(error), keys::data::kImageRoot);
}

void check_is_regular_file(const std::filesystem::path& path, std::string_view description) {
  if (const auto file_kind = describe_non_regular_file(path); !file_kind.empty()) {
    throw data_error("{}: cannot open {}: it is {}; give a file", path.string(), description, file_kind);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw make_open_error(path, description, error.value());
}

FileByteSource::FileByteSource(const std::filesystem::path& path) {
  check_is_regular_file(path, "the image");
  file_.open(path, std::ios::binary);
  if (!file_) throw make_open_error(path, "the image", errno);
  std::error_code error;
  size_ = std::filesystem::file_size(path, error);
  if (error) throw make_open_error(path, "the image", error.value());
}

bool FileByteSource::read(uint64_t offset, std::span<uint8_t> out) {
  file_.clear();  // an earlier read may have reached the end
  file_.seekg(static_cast<std::streamoff>(offset));
  file_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  return file_.gcount() == static_cast<std::streamsize>(out.size());
}

size_t ByteStream::read(std::span<uint8_t> out) {
  if (position_ >= size()) return 0;
  const auto count = static_cast<size_t>(std::min<uint64_t>(out.size(), size() - position_));
  if (!source_.read(position_, out.first(count))) return 0;
  position_ += count;
  return count;
}

std::vector<std::byte> read_file_bytes(const std::filesystem::path& path) {
  check_is_regular_file(path, "the image");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw make_open_error(path, "the image", errno);
  std::vector<std::byte> bytes(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw data_error("{}: cannot read the whole image; check the disk or network", path.string());
  return bytes;
}

}  // namespace vlmtrain::image
