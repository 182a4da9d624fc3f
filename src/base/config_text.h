#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace vlmtrain {

/// The text of a configuration, without a byte order mark. A file, or what can be read from a descriptor that this
/// program was started with (/dev/stdin, /dev/fd/N: a shell's `<(…)`), which is gone once it is read. Throws UserError
/// (kUsage) for any other pipe, device or folder, what is too long to be meant, and UTF-16.
std::string read_config_text(const std::filesystem::path& path);

/// Why `text` is no YAML, in a person's words; `line` counts from 0, `reason` is yaml-cpp's.
std::string describe_yaml_error(std::string_view text, int line, std::string_view reason);

}  // namespace vlmtrain
