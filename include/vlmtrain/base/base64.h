#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain {

/// Returns the bytes in base64 with padding (RFC 4648, section 4).
std::string base64_encode(std::string_view bytes);

/// Returns the decoded bytes, or nothing if `text` is not base64 with padding. Line breaks are
/// ignored, as in MIME (RFC 2045).
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace vlmtrain
