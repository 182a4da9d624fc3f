#pragma once

#include <string_view>

namespace vlmtrain::io {

/// JSON's.
inline constexpr std::string_view kWhiteSpace = " \t\r\n";

}  // namespace vlmtrain::io
