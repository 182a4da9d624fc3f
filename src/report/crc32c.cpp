#include "report/crc32c.h"

#include <array>

namespace vlmtrain::report {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1EDC6F41 with its bits in reverse

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = remainder >> 1 ^ (remainder & 1 ? kPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

}  // namespace vlmtrain::report
