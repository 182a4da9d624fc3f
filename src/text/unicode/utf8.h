#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::text {

/// The result of read_utf8(): a code point, or invalid bytes, which U+FFFD replaces.
struct Utf8Character {
  char32_t code_point;  ///< U+FFFD if invalid
  /// Number of bytes read, at least 1. For invalid input, the length of the maximal subpart of a
  /// sequence (Unicode 15, table 3-8).
  size_t num_bytes;
  bool is_valid;
};

/// Reads the character that begins at byte `pos`. Accepts invalid UTF-8. REQUIRES pos <
/// text.size().
Utf8Character read_utf8(std::string_view text, size_t pos);

/// Appends the UTF-8 encoding of `code_point` to `out`. REQUIRES a code point up to U+10FFFF that
/// is not a surrogate.
void append_utf8(std::string& out, char32_t code_point);

/// Returns the offset of the first byte that is not part of valid UTF-8, or nothing for valid text.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Returns `text` with U+FFFD in place of each invalid sequence.
std::string replace_invalid_utf8(std::string_view text);

/// Returns the byte offset of the next character after the character that begins at byte `pos`.
/// REQUIRES pos < text.size().
size_t find_next_character(std::string_view text, size_t pos);

/// Returns the byte offset of the character that ends at byte `pos`. REQUIRES valid UTF-8 and pos >
/// 0.
size_t find_previous_character(std::string_view text, size_t pos);

/// Returns the byte offset of character `index`, counted from 0, or text.size() if there are fewer
/// characters. REQUIRES valid UTF-8.
size_t to_byte_offset(std::string_view text, size_t index);

/// Returns the byte offset of the first `needle` at or after `pos`, or npos. Gives the same result
/// as string_view::find in linear time; string_view::find is quadratic on texts such as "aaaa…".
size_t find_substring(std::string_view text, std::string_view needle, size_t pos);

}  // namespace vlmtrain::text
