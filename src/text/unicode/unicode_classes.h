#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace vlmtrain::text {

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
