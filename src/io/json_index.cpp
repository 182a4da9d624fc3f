#include "io/json_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/user_cache.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;

/// Numbers of the machine's own byte order, then the places.
struct IndexHeader {
  std::array<char, 8> magic{'v', 'l', 'm', 'j', 's', 'o', 'n', '1'};
  uint64_t stamp = 0;
  uint64_t is_json_lines = 0;
  uint64_t end = 0;
  uint64_t num_records = 0;
  uint64_t hash = 0;  ///< of all that follows and of the numbers before

  void compute_hash(std::string_view body) {
    hash = ContentHash().add(stamp).add(is_json_lines).add(end).add(num_records).add(body).value();
  }
};

template <class T>
std::string_view as_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
void copy_values(std::string_view& bytes, std::vector<T>& values) {
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  bytes.remove_prefix(values.size() * sizeof(T));
}

}  // namespace

fs::path get_json_index_path(const fs::path& file) {
  const fs::path folder = get_user_cache_folder();
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(file, error);
  if (folder.empty() || error) return {};
  return folder / "json-index" / ContentHash().add(absolute.native()).hex();
}

std::optional<RecordOffsets> read_json_index(const fs::path& index, uint64_t stamp, uint64_t file_bytes) {
  std::error_code error;
  if (index.empty() || !fs::is_regular_file(index, error)) return std::nullopt;
  std::string content;
  try {
    content = read_file(index);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  IndexHeader header;
  const IndexHeader expected;
  if (content.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof(header));
  std::string_view body = std::string_view(content).substr(sizeof(header));
  IndexHeader recomputed = header;
  recomputed.compute_hash(body);
  constexpr uint64_t kRecordBytes = sizeof(uint64_t) + sizeof(uint32_t);
  const bool is_valid = header.magic == expected.magic && header.stamp == stamp && header.hash == recomputed.hash &&
                        header.end <= file_bytes && body.size() == header.num_records * kRecordBytes;
  if (!is_valid) return std::nullopt;
  RecordOffsets offsets;
  offsets.is_json_lines = header.is_json_lines != 0;
  offsets.end = header.end;
  offsets.begins.resize(header.num_records);
  offsets.line_numbers.resize(header.num_records);
  copy_values(body, offsets.begins);
  copy_values(body, offsets.line_numbers);
  return offsets;
}

void write_json_index(const fs::path& index, uint64_t stamp, const RecordOffsets& offsets) {
  if (index.empty()) return;
  IndexHeader header;
  header.stamp = stamp;
  header.is_json_lines = offsets.is_json_lines ? 1 : 0;
  header.end = offsets.end;
  header.num_records = offsets.begins.size();
  const std::string body = std::string(as_bytes(offsets.begins)).append(as_bytes(offsets.line_numbers));
  header.compute_hash(body);
  try {
    fs::create_directories(index.parent_path());
    write_file(index, std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body);
  } catch (const std::exception& error) {
    spdlog::info("where the records of a data set lie is not kept for the next start: {}", error.what());
  }
}

}  // namespace vlmtrain::io
