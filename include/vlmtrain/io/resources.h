#pragma once

#include <map>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Files compiled into the binary (cmake/Resources.cmake), by their path below the embedded folder.
/// The content lives as long as the program.
using Resources = std::map<std::string, std::string_view, std::less<>>;

}  // namespace vlmtrain::io
