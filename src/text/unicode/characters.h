#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
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

// Character classes as the libraries define them whose behavior src/text reproduces: Rust's crates
// for the tokenizer, Python for templates. `code_point` is any value up to U+10FFFF.

/// Returns whether the character has the Unicode property White_Space.
bool is_white_space(char32_t code_point);

/// Returns whether `\w` of Rust's regex crate matches: letters, marks, decimal numbers, letter
/// numbers, connector punctuation, and the joiners U+200C and U+200D.
bool is_word_character(char32_t code_point);

/// Returns whether the general category is N (Nd, Nl or No). Templates use it for Python's
/// str.isnumeric().
bool is_numeric(char32_t code_point);

/// Returns whether Python's str.isspace() is true: is_white_space() or a separator U+001C to
/// U+001F.
bool is_python_space(char32_t character);

/// Returns whether Python's str.isprintable() is true. repr() escapes all other characters.
bool is_printable(char32_t character);

/// Returns whether Python's str.isalpha() is true: general category L.
bool is_letter(char32_t character);

/// Returns whether Python's str.isdecimal() is true: general category Nd.
bool is_decimal(char32_t character);

/// Returns whether Python's str.isdigit() is true: decimals, superscripts, subscripts and circled
/// digits.
bool is_digit(char32_t character);

/// Each returns whether the character is uppercase, lowercase or titlecase (general category Lt),
/// as str.isupper(), str.islower() and str.istitle() classify it.
bool is_uppercase(char32_t character);
bool is_lowercase(char32_t character);
bool is_titlecase(char32_t character);

/// Returns `text` without white space (is_python_space()) at both ends, as Python's str.strip().
/// REQUIRES valid UTF-8.
std::string_view strip_white_space(std::string_view text);

/// ASCII white space, which chat templates trim and insert.
inline constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

/// Returns the number of bytes of ASCII white space at the beginning of `text`.
inline size_t count_leading_white_space(std::string_view text) {
  const size_t end = text.find_first_not_of(kWhiteSpace);
  return end == std::string_view::npos ? text.size() : end;
}

/// Returns whether the byte is not ASCII white space.
inline bool is_visible(char c) {
  return kWhiteSpace.find(c) == std::string_view::npos;
}

/// Returns the number of bytes of `text` for which is_visible() is true.
inline size_t count_visible_bytes(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, is_visible));
}

/// Returns `text` without ASCII white space. Templates change only white space when they trim and
/// join texts, so this is the part that they keep.
inline std::string remove_white_space(std::string_view text) {
  std::string visible_chars;
  visible_chars.reserve(text.size());
  std::ranges::copy_if(text, std::back_inserter(visible_chars), is_visible);
  return visible_chars;
}

}  // namespace vlmtrain::text
