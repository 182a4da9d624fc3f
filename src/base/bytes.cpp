#include "vlmtrain/base/bytes.h"

#include <fmt/format.h>

#include <array>

namespace vlmtrain {

std::string format_bytes(int64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && (value >= 1024 || value <= -1024)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace vlmtrain
