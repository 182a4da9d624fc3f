#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Returns the value of the first of `keys` that is present and not null, or nullptr. REQUIRES:
/// `object` is an object.
inline const RecordJson* find_present_value(const RecordJson& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it != object.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

/// Returns true for values without content: null, "", and lists and objects whose values are all
/// blank. Table formats fill missing fields with them.
bool is_blank(const RecordJson& value);

/// Returns the value of a key if it is not blank, else nullptr. REQUIRES: `object` is an object.
inline const RecordJson* find_non_blank_value(const RecordJson& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || is_blank(*it) ? nullptr : &*it;
}

/// Returns a string, a number or a boolean as text, or nothing for other values.
inline std::optional<std::string> format_scalar(const RecordJson& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() || value.is_boolean() ? std::optional(value.dump()) : std::nullopt;
}

/// Returns a switch: true for true, 1 and their texts, false for false, 0 and their texts; nothing
/// for other values.
std::optional<bool> parse_switch(const RecordJson& value);

/// Returns an excerpt of a value for a message. The cost does not depend on the size of the value.
std::string make_value_excerpt(const RecordJson& value);

/// Moves the value of `key` out of `object` and leaves null. Returns null if the key is absent.
inline RecordJson take_field(RecordJson& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? RecordJson() : std::exchange(*it, nullptr);
}

/// Returns true for the beginning of a JPEG, PNG, WebP, TIFF, HEIC, AVIF, GIF or BMP file.
bool has_image_signature(std::string_view bytes);

/// Returns true for a path with the extension of a video file.
bool has_video_extension(std::string_view path);

/// Kind of media that a value contains.
enum class MediaType : uint8_t { kNone, kImage, kVideo };

/// Returns the kind of media in the value of an unknown key. Media are local paths with the
/// extension of an image or a video, "data:" URLs, bytes with the signature of an image, objects
/// {"bytes", "path"} of Hugging Face datasets, and lists of these, by their first entry with
/// content. Returns kNone for http URLs, which usually name the source of a record.
MediaType classify_media(const RecordJson& value);

/// Returns the weight of an answer in the loss, from keys such as "loss", "train", "weight" and
/// "loss_scale" of its turn: 0 if any of them excludes it, else the fraction, else 1. Throws
/// data_error for other values, for fractions that differ, and for fractions below 1e-6.
float parse_loss_weight(const RecordJson& turn, size_t turn_number);

/// Returns a number from 0 to 1, or the text of one, as tables write decimals. Returns nothing for
/// other values.
std::optional<double> parse_fraction(const RecordJson& value);

}  // namespace vlmtrain::io
