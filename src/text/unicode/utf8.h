#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::text {

/// One step of reading UTF-8: a code point, or the bytes that U+FFFD replaces.
struct Utf8Character {
  char32_t code_point;
  size_t
      bytes;  ///< of the character; if invalid, of the maximal part of a sequence (Unicode 15, table 3-8), at least 1
  bool valid;
};

/// Reads the character at `pos`; REQUIRES at < text.size().
Utf8Character read_utf8(std::string_view text, size_t pos);

void append_utf8(std::string& out, char32_t code_point);

/// Offset of the first byte that is not part of valid UTF-8.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// `text` with U+FFFD in place of what is not valid.
std::string replace_invalid_utf8(std::string_view text);

/// The property White_Space.
bool is_white_space(char32_t code_point);
/// What `\w` takes in Rust's regexes: letters, marks, decimal and letter numbers, connectors, joiners.
bool is_word_character(char32_t code_point);
/// General category N: Nd, Nl, No.
bool is_numeric(char32_t code_point);

}  // namespace vlmtrain::text
