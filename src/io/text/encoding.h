#pragma once

#include <string_view>

namespace vlmtrain::io {

/// The whitespace of JSON (RFC 8259, section 2).
inline constexpr std::string_view kJsonWhitespace = " \t\r\n";

/// The byte order mark of UTF-8.
inline constexpr std::string_view kUtf8ByteOrderMark = "\xEF\xBB\xBF";

/// Returns true for text with a byte order mark of UTF-16, which tools on Windows write as
/// "Unicode".
inline bool is_utf16(std::string_view text) {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}

/// Predicate of an error message about a UTF-16 file.
inline constexpr std::string_view kUtf16Hint = "is UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)";

}  // namespace vlmtrain::io
