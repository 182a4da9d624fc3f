#include "app/volume_size.h"

#include <cstdio>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text) {
  if (text.empty()) return std::nullopt;
  long x = 0, y = 0, z = 0;  // NOLINT(google-runtime-int): what sscanf reads
  char trailing = 0;
  if (std::sscanf(text.c_str(), "%5ld%c", &x, &trailing) == 1 && x >= 1) return std::array<int64_t, 3>{x, x, x};
  if (std::sscanf(text.c_str(), "%5ldx%5ldx%5ld%c", &x, &y, &z, &trailing) != 3 || x < 1 || y < 1 || z < 1) {
    throw usage_error("--volume-size {}: must be XxYxZ in voxels, such as 96x96x64, or one number for all three", text);
  }
  return std::array<int64_t, 3>{x, y, z};
}

}  // namespace vlmtrain::app
