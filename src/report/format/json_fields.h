#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace vlmtrain::report {

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
