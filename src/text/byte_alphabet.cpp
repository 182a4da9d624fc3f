#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace vlmtrain::text {
namespace {

constexpr int kBytes = 256;
constexpr char32_t kFirstSubstitute = 0x100;
constexpr int kSubstitutes = 68;  // bytes that are not printable in Latin-1

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

std::array<std::string, kBytes> make_alphabet() {
  std::array<std::string, kBytes> alphabet;
  char32_t substitute = kFirstSubstitute;
  for (int byte = 0; byte < kBytes; ++byte) {
    append_utf8(alphabet[static_cast<size_t>(byte)], is_printable(byte) ? static_cast<char32_t>(byte) : substitute++);
  }
  return alphabet;
}

std::array<int, kFirstSubstitute + kSubstitutes> make_inverse() {
  std::array<int, kFirstSubstitute + kSubstitutes> inverse{};
  inverse.fill(-1);
  for (int byte = 0; byte < kBytes; ++byte) {
    inverse[read_utf8(byte_alphabet()[static_cast<size_t>(byte)], 0).code_point] = byte;
  }
  return inverse;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  static const std::array<std::string, kBytes> alphabet = make_alphabet();
  return alphabet;
}

std::optional<std::string> bytes_of(std::string_view token) {
  static const auto inverse = make_inverse();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = read_utf8(token, at);
    if (step.code_point >= inverse.size() || inverse[step.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(inverse[step.code_point]));
    at += step.bytes;
  }
  return bytes;
}

}  // namespace vlmtrain::text
