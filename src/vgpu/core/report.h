#pragma once

#include <initializer_list>
#include <string_view>

namespace vlmtrain::vgpu {

/// Writes the pieces as a line to stderr. The stand-ins cannot throw through C, nor use the program's log.
void report(std::initializer_list<std::string_view> pieces);

}  // namespace vlmtrain::vgpu
