#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain {

/// 1536 → "1.5 KiB".
std::string format_bytes(int64_t bytes);

}  // namespace vlmtrain
