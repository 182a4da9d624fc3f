#pragma once

#include <string_view>

namespace vlmtrain::io {

inline constexpr std::string_view kUtf8ByteOrderMark = "\xEF\xBB\xBF";

/// What Windows' tools write where they are asked for Unicode.
inline bool is_utf16(std::string_view text) {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}

/// For a message that names the file.
inline constexpr std::string_view kUtf16Hint = "is UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)";

}  // namespace vlmtrain::io
