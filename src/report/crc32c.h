#pragma once

#include <cstdint>
#include <string_view>

namespace vlmtrain::report {

/// The Castagnoli CRC of RFC 3720, appendix B.4: reflected, polynomial 0x1EDC6F41.
uint32_t crc32c(std::string_view bytes);

}  // namespace vlmtrain::report
