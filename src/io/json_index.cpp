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
  uint64_t are_lines = 0;
  uint64_t end = 0;
  uint64_t records = 0;
  uint64_t hash = 0;  ///< of all that follows and of the numbers before

  void seal(std::string_view body) {
    hash = ContentHash().add(stamp).add(are_lines).add(end).add(records).add(body).value();
  }
};

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
void take(std::string_view& bytes, std::vector<T>& values) {
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  bytes.remove_prefix(values.size() * sizeof(T));
}

}  // namespace

fs::path json_index_of(const fs::path& file) {
  const fs::path folder = user_cache();
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(file, error);
  if (folder.empty() || error) return {};
  return folder / "json-index" / ContentHash().add(absolute.native()).text();
}

std::optional<JsonPlaces> read_json_index(const fs::path& index, uint64_t stamp, uint64_t file_bytes) {
  std::error_code error;
  if (index.empty() || !fs::is_regular_file(index, error)) return std::nullopt;
  std::string content;
  try {
    content = read_file(index);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  IndexHeader header;
  const IndexHeader wanted;
  if (content.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof(header));
  std::string_view body = std::string_view(content).substr(sizeof(header));
  IndexHeader sealed = header;
  sealed.seal(body);
  constexpr uint64_t kRecordBytes = sizeof(uint64_t) + sizeof(uint32_t);
  const bool is_whole = header.magic == wanted.magic && header.stamp == stamp && header.hash == sealed.hash &&
                        header.end <= file_bytes && body.size() == header.records * kRecordBytes;
  if (!is_whole) return std::nullopt;
  JsonPlaces places;
  places.are_lines = header.are_lines != 0;
  places.end = header.end;
  places.begins.resize(header.records);
  places.lines.resize(header.records);
  take(body, places.begins);
  take(body, places.lines);
  return places;
}

void write_json_index(const fs::path& index, uint64_t stamp, const JsonPlaces& places) {
  if (index.empty()) return;
  IndexHeader header;
  header.stamp = stamp;
  header.are_lines = places.are_lines ? 1 : 0;
  header.end = places.end;
  header.records = places.begins.size();
  const std::string body = std::string(bytes_of(places.begins)).append(bytes_of(places.lines));
  header.seal(body);
  try {
    fs::create_directories(index.parent_path());
    write_file(index, std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body);
  } catch (const std::exception& problem) {
    spdlog::info("where the records of a data set lie is not kept for the next start: {}", problem.what());
  }
}

}  // namespace vlmtrain::io
