#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace vlmtrain {

/// The concatenation of constants, made by the compiler, for texts that must exist before main() or
/// in constant tables. `value` is followed by a NUL character.
template <const std::string_view&... parts>
class JoinedText {
  static constexpr auto kCharacters = [] {
    std::array<char, (parts.size() + ... + 1)> characters{};
    auto end = characters.begin();
    ((end = std::ranges::copy(parts, end).out), ...);
    return characters;
  }();

 public:
  static constexpr std::string_view value{kCharacters.data(), kCharacters.size() - 1};
};

}  // namespace vlmtrain
