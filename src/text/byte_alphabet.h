#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::text {

/// The printable character (as UTF-8) that stands for each byte in byte-level vocabularies. Source: GPT-2,
/// `bytes_to_unicode`: printable Latin-1 characters stand for themselves, the other bytes in turn for U+0100 and up.
const std::array<std::string, 256>& byte_alphabet();

/// The bytes that `token` stands for, none if one of its characters stands for no byte.
std::optional<std::string> decode_byte_level(std::string_view token);

}  // namespace vlmtrain::text
