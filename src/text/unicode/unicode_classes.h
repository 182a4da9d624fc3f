#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace vlmtrain::text {

// Character classes of the libraries whose behavior this part reproduces. Their names follow
// Unicode where both agree.

/// Returns whether the character has the Unicode property White_Space.
bool is_white_space(char32_t code_point);

/// Returns whether `\w` of Rust's regex crate matches: letters, marks, decimal and letter numbers,
/// connectors, joiners.
bool is_word_character(char32_t code_point);

/// Returns whether the general category is N (Nd, Nl or No), as Python's str.isnumeric().
bool is_numeric(char32_t code_point);

/// Returns whether Python's str.isspace() holds: White_Space and the separators U+001C to U+001F.
bool is_space(char32_t character);

/// Returns whether Python's str.isprintable() holds; repr() escapes all other characters.
bool is_printable(char32_t character);

/// Returns whether Python's str.isalpha() holds: general category L.
bool is_letter(char32_t character);

/// Returns whether Python's str.isdecimal() holds: general category Nd.
bool is_decimal(char32_t character);

/// Returns whether Python's str.isdigit() holds: decimals, superscripts, subscripts and circled
/// digits.
bool is_digit(char32_t character);

/// Returns whether the character is uppercase, lowercase or titlecase (general category Lt), as
/// str.isupper(), str.islower() and str.istitle() see it.
bool is_upper(char32_t character);
bool is_lower(char32_t character);
bool is_title(char32_t character);

/// Returns `text` without the characters at its ends for which is_space() holds. REQUIRES valid
/// UTF-8.
std::string_view strip_whitespace(std::string_view text);

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

/// Returns the number of visible bytes of `text`.
inline size_t count_visible(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, is_visible));
}

/// Returns the visible bytes of `text`: the part that templates keep when they trim and join texts.
inline std::string remove_white_space(std::string_view text) {
  std::string visible;
  visible.reserve(text.size());
  std::ranges::copy_if(text, std::back_inserter(visible), is_visible);
  return visible;
}

}  // namespace vlmtrain::text
