#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace vlmtrain::app {

/// What --volume-size says, in voxels: XxYxZ or one number for all three; nothing where it was not given. Throws
/// UserError (kUsage).
std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text);

}  // namespace vlmtrain::app
