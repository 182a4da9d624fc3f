#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace vlmtrain {

/// Returns the text of a configuration without a byte order mark. `path` is a regular file or an
/// inherited descriptor (/dev/stdin, or /dev/fd/N as in a shell's `<(…)`), which can be read only
/// once. Throws UserError (kUsage) for missing files, folders, other pipes and devices, files above
/// 16 MiB, and UTF-16.
std::string read_config_text(const std::filesystem::path& path);

/// Returns an explanation of a YAML error in `text`, which follows "<file>:<line>: ". `line` is the
/// line that yaml-cpp reports, from 0, and `reason` its message.
std::string describe_yaml_error(std::string_view text, int line, std::string_view reason);

}  // namespace vlmtrain
