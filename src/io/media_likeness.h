#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string_view>

namespace vlmtrain::io {

enum class MediaClass : uint8_t { kNone, kImage, kVideo };

/// Returns what a value plainly is: a local path with the ending of an image or a video, a "data:" address of one,
/// bytes that begin as an image does, an object {"bytes", "path"} as Hugging Face's data sets have it, or a list of
/// these. Addresses of the web are kNone: they are mostly where a record is from.
MediaClass classify_media(const nlohmann::json& value);

/// Returns true for a path with the ending of a video file.
bool has_video_extension(std::string_view path);

/// Returns true for values that have no content at any depth: null, "", lists and objects of such values. Table formats
/// fill missing fields with them.
bool is_blank(const nlohmann::json& value);

}  // namespace vlmtrain::io
