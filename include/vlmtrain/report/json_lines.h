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

/// A reader of a growing file of JSON lines. Not thread-safe.
class JsonLinesFollower {
 public:
  explicit JsonLinesFollower(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls `callback` with each JSON object among the complete lines that were appended after the
  /// last call. Skips lines that are not objects. A last line without line break is read once it is
  /// complete. Does nothing if the file does not exist or cannot be opened. Throws UserError
  /// (kBadData) if the path is not a regular file.
  void read(const std::function<void(const nlohmann::json& object)>& callback);

  /// Returns why a report omits lines of the file, such as "runs/a/metrics.jsonl: line 7 is damaged;
  /// the report omits it"; empty if read() has read all of its complete lines.
  std::string describe_problem() const;

  /// Returns whether the file was replaced, removed or truncated after the last read(), so that the
  /// lines read are obsolete. Returns false before the first line was read.
  bool was_replaced() const;

 private:
  std::filesystem::path path_;
  std::streamoff read_offset_ = 0;  // end of the lines read so far
  ino_t inode_ = 0;                 // of the file read last; 0: none
  std::string open_error_;          // why the last read() could not open the file; empty: it could
  int64_t num_lines_ = 0;           // lines read so far
  int64_t num_damaged_lines_ = 0;
  int64_t first_damaged_line_ = 0;  // number of the line, from 1
};

// The following functions read a field of a file that may be damaged or written by another program
// version. They treat a field of another type as missing.

/// Returns the number; NaN if the field is missing or not a number, such as null.
inline double get_number_or_nan(const nlohmann::json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_number() ? entry->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// Returns the number as an integer; 0 if the field is missing or not a number.
inline int64_t get_integer_or_zero(const nlohmann::json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_number() ? entry->get<int64_t>() : 0;
}

/// Returns the weight of a mean loss in a mean over steps: the sum of its label tokens' weights
/// ("label_weight"), which are all 1 if the field is missing ("label_tokens").
inline double get_label_weight(const nlohmann::json& object) {
  const double weight = get_number_or_nan(object, "label_weight");
  return weight > 0 ? weight : static_cast<double>(get_integer_or_zero(object, "label_tokens"));
}

/// Returns the string; empty if the field is missing or not a string.
inline std::string get_string_or_empty(const nlohmann::json& object, const char* key) {
  const auto entry = object.find(key);
  return entry != object.end() && entry->is_string() ? entry->get<std::string>() : std::string();
}

/// Returns the UTF-8 text if it has at most `max_bytes` bytes. Otherwise returns its first
/// characters in at most `max_bytes` bytes, followed by " …".
inline std::string truncate_utf8(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  // Bytes of the form 10xxxxxx continue a character.
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xc0) == 0x80) --max_bytes;
  return text.substr(0, max_bytes) + " …";
}

/// Returns the value as JSON, or null.
template <class T>
nlohmann::ordered_json optional_to_json(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace vlmtrain::report
