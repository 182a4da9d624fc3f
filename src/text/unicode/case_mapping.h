#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vlmtrain::text {

/// Each appends the uppercase, lowercase or titlecase form of the character at byte `pos` of `text`
/// to `out`, as Python's str.upper(), str.lower() and str.title() map it. One character may become
/// several. The lowercase form of a sigma depends on its neighbors. REQUIRES valid UTF-8 and pos <
/// text.size().
void append_uppercase(std::string_view text, size_t pos, std::string& out);
void append_lowercase(std::string_view text, size_t pos, std::string& out);
void append_titlecase(std::string_view text, size_t pos, std::string& out);

}  // namespace vlmtrain::text
