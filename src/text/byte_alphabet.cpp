#include "text/byte_alphabet.h"

#include "text/unicode/utf8.h"

namespace vlmtrain::text {
namespace {

constexpr int kNumBytes = 256;
constexpr char32_t kFirstSubstitute = 0x100;
constexpr int kNumSubstitutes = 68;  // bytes that are not printable in Latin-1

constexpr bool is_printable_latin1(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

std::array<std::string, kNumBytes> make_alphabet() {
  std::array<std::string, kNumBytes> alphabet;
  char32_t substitute = kFirstSubstitute;
  for (int byte = 0; byte < kNumBytes; ++byte) {
    append_utf8(alphabet[static_cast<size_t>(byte)],
                is_printable_latin1(byte) ? static_cast<char32_t>(byte) : substitute++);
  }
  return alphabet;
}

std::array<int, kFirstSubstitute + kNumSubstitutes> make_inverse_alphabet() {
  std::array<int, kFirstSubstitute + kNumSubstitutes> inverse{};
  inverse.fill(-1);
  for (int byte = 0; byte < kNumBytes; ++byte) {
    inverse[read_utf8(byte_alphabet()[static_cast<size_t>(byte)], 0).code_point] = byte;
  }
  return inverse;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  static const std::array<std::string, kNumBytes> alphabet = make_alphabet();
  return alphabet;
}

std::optional<std::string> decode_byte_level(std::string_view token) {
  static const auto inverse = make_inverse_alphabet();
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Character utf8 = read_utf8(token, pos);
    if (utf8.code_point >= inverse.size() || inverse[utf8.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(inverse[utf8.code_point]));
    pos += utf8.bytes;
  }
  return bytes;
}

}  // namespace vlmtrain::text
