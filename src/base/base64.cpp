#include "vlmtrain/base/base64.h"

#include <array>
#include <cstdint>

namespace vlmtrain {

namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kInvalid = 0xFF;

/// Returns the value of each byte as a character of base64, or kInvalid.
constexpr std::array<uint8_t, 256> make_value_table() {
  std::array<uint8_t, 256> values{};
  values.fill(kInvalid);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<uint8_t>(i);
  }
  return values;
}

constexpr std::array<uint8_t, 256> kValues = make_value_table();

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    // Three bytes become four characters. The last group may have fewer bytes: a character without
    // any of their bits becomes padding.
    uint32_t group = 0;
    for (size_t k = i; k < i + 3; ++k)
      group = group << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0U);
    for (size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kAlphabet[group >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int num_bits = 0;
  size_t num_characters = 0, num_padding_characters = 0;
  for (const char character : text) {
    if (character == '\n' || character == '\r') continue;
    ++num_characters;
    if (character == '=') {
      ++num_padding_characters;
      continue;
    }
    const uint8_t value = kValues[static_cast<unsigned char>(character)];
    if (value == kInvalid || num_padding_characters > 0) return std::nullopt;
    bits = bits << 6 | value;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return num_characters % 4 == 0 && num_padding_characters <= 2 ? std::optional(std::move(bytes)) : std::nullopt;
}

}  // namespace vlmtrain
