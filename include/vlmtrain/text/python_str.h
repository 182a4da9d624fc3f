#pragma once

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

}  // namespace vlmtrain::text
