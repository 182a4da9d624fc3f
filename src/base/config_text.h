#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace vlmtrain {

/// Returns the text of a configuration without a byte order mark. `path` is a regular file or an
/// inherited descriptor (/dev/stdin, /dev/fd/N, as in a shell's `<(…)`), which can be read only
/// once. Throws usage_error for other pipes, devices and folders, for files that are too large for
/// a configuration, and for UTF-16.
std::string read_config_text(const std::filesystem::path& path);

/// Returns a predicate that explains a YAML error. `line` counts from 0; `reason` is the message of
/// yaml-cpp.
std::string describe_yaml_error(std::string_view text, int line, std::string_view reason);

}  // namespace vlmtrain
