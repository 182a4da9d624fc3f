#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/jinja/marked_text.h"

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

size_t next_character(std::string_view text, size_t at);
size_t previous_character(std::string_view text, size_t at);
/// The byte at which character `index` begins; the end for as many as there are.
size_t place_of(std::string_view text, size_t index);

/// `text` without white space around it.
std::string_view stripped(std::string_view text);
/// string_view::find in linear time.
size_t find_text(std::string_view text, std::string_view what, size_t from);

/// Appends the character at `at` of `text` in that case, which may be several characters.
void append_upper(std::string_view text, size_t at, std::string& out);
void append_lower(std::string_view text, size_t at, std::string& out);
void append_title(std::string_view text, size_t at, std::string& out);

MarkedText uppercase(const MarkedText& text);
MarkedText lowercase(const MarkedText& text);

}  // namespace vlmtrain::text::jinja
