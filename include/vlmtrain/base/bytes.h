#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain {

/// 1536 → "1.5 KiB".
std::string format_bytes(int64_t bytes);

/// In GB of 10⁹ bytes, as cards and plans are counted.
constexpr double to_gigabytes(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

}  // namespace vlmtrain
