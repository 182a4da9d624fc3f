#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>

namespace vlmtrain::report {

/// Calls `callback` with each JSON object of a file of JSON lines, in order. Skips lines that are
/// not objects or are truncated. Does nothing if the file does not exist. Throws UserError
/// (kBadData) if the path is not a regular file.
void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json& object)>& callback);

/// A reader of the JSON lines of a growing file.
class AppendedJsonLines {
 public:
  explicit AppendedJsonLines(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls `callback` with each object among the complete lines that were appended since the last
  /// call. Skips other lines. A last line without line break is read once it is complete. Does
  /// nothing if the file does not exist.
  void read(const std::function<void(const nlohmann::json& object)>& callback);

  /// Returns whether the file was replaced or truncated, so that what was read is obsolete.
  bool was_replaced() const;

 private:
  std::filesystem::path path_;
  std::streamoff read_bytes_ = 0;
  ino_t inode_ = 0;
};

// Fields of files that may be damaged or of another version: a missing field, or one of another
// type, counts as absent.

/// Returns NaN if the field is not a number, such as null.
inline double get_number(const nlohmann::json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_number() ? entry->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// Returns 0 if the field is not a number.
inline int64_t get_count(const nlohmann::json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_number() ? entry->get<int64_t>() : 0;
}

/// Returns an empty string if the field is not a string.
inline std::string get_text(const nlohmann::json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_string() ? entry->get<std::string>() : std::string();
}

/// Returns the UTF-8 text if it has at most `size` bytes; otherwise its beginning, cut between
/// characters, and " …".
inline std::string truncate_utf8(const std::string& text, size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size) + " …";
}

/// Returns the value as JSON, or null.
template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace vlmtrain::report
