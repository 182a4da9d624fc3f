#pragma once

#include <string_view>

namespace vlmtrain::io {

/// JSON's.
inline constexpr std::string_view kJsonWhitespace = " \t\r\n";

}  // namespace vlmtrain::io
