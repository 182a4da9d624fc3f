#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/jinja/runtime/tracked_text.h"

namespace vlmtrain::text::jinja {

/// What Python's str knows of characters. Texts are valid UTF-8, places are offsets of bytes.

/// str.isspace() of one.
bool is_space(char32_t character);
bool is_printable(char32_t character);
bool is_letter(char32_t character);
bool is_decimal(char32_t character);
bool is_digit(char32_t character);
bool is_upper(char32_t character);
bool is_lower(char32_t character);
bool is_title(char32_t character);

size_t next_character(std::string_view text, size_t pos);
size_t previous_character(std::string_view text, size_t pos);
/// The byte at which character `index` begins; the end for as many as there are.
size_t to_byte_offset(std::string_view text, size_t index);

/// `text` without white space around it.
std::string_view strip_whitespace(std::string_view text);
/// string_view::find in linear time.
size_t find_text(std::string_view text, std::string_view needle, size_t pos);

/// Appends the character at `pos` of `text` in that case, which may be several characters.
void append_upper(std::string_view text, size_t pos, std::string& out);
void append_lower(std::string_view text, size_t pos, std::string& out);
void append_title(std::string_view text, size_t pos, std::string& out);

TrackedText to_upper(const TrackedText& text);
TrackedText to_lower(const TrackedText& text);

}  // namespace vlmtrain::text::jinja
