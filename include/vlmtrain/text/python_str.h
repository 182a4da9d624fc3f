#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::text {

// Methods of Python's str, for results that must equal those of Python programs. Bytes that are not
// valid UTF-8 count as U+FFFD.

/// Returns the code points of UTF-8 text.
std::u32string decode_utf8(std::string_view text);

/// Returns str.lower().
std::string to_python_lower(std::string_view text);

/// Returns str.upper().
std::string to_python_upper(std::string_view text);

/// Returns str.strip(): the text without white space at both ends.
std::string strip_python_space(std::string_view text);

/// Returns str.split(): the parts between white space, none of them empty.
std::vector<std::string> split_python_words(std::string_view text);

/// Returns str.isalpha() of one character: general category L.
bool is_python_alpha(char32_t code_point);

/// Each appends the uppercase, lowercase or titlecase form of the character at byte `pos` of `text`
/// to `out`, as Python's str.upper(), str.lower() and str.title() map it. One character may become
/// several. The lowercase form of a sigma depends on its neighbors. REQUIRES valid UTF-8 and pos <
/// text.size().
void append_uppercase(std::string_view text, size_t pos, std::string& out);
void append_lowercase(std::string_view text, size_t pos, std::string& out);
void append_titlecase(std::string_view text, size_t pos, std::string& out);

}  // namespace vlmtrain::text
