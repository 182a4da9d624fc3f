#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::report {

/// RFC 4648, section 4.
std::string base64_encode(std::string_view bytes);
/// The bytes; empty where `text` is not base64.
std::string base64_decode(std::string_view text);

}  // namespace vlmtrain::report
