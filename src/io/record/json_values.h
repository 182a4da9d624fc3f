#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Returns the value of the first of `keys` that is present and not null, or nullptr.
inline const nlohmann::json* find_present(const nlohmann::json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it != object.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

/// Returns a string, a number or a boolean as text, or nothing for other values.
inline std::optional<std::string> scalar_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() || value.is_boolean() ? std::optional(value.dump()) : std::nullopt;
}

/// Returns true for values without content at any depth: null, "", and lists and objects of such
/// values. Table formats fill missing fields with them.
bool is_blank(const nlohmann::json& value);

/// Returns true for a path with the extension of a video file.
bool has_video_extension(std::string_view path);

/// Kind of media that a JSON value contains.
enum class MediaClass : uint8_t { kNone, kImage, kVideo };

/// Detects media in a value of an unknown key: a local path with the extension of an image or a
/// video, a "data:" URL, bytes with the signature of an image, an object {"bytes", "path"} of
/// Hugging Face datasets, or a list of these. Returns kNone for http URLs, which usually name the
/// source of a record.
MediaClass classify_media(const nlohmann::json& value);

}  // namespace vlmtrain::io
