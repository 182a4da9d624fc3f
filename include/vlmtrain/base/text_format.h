#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain {

/// Returns a size in binary units with one decimal, or in bytes below 1 KiB: 1536 → "1.5 KiB",
/// 100 → "100 B".
std::string format_bytes(int64_t bytes);

/// Returns a size in GB of 10⁹ bytes, the unit of GPU data sheets and of plans.
constexpr double to_gigabytes(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

/// Returns the number with commas between thousands: 15209 → "15,209". REQUIRES: number >= 0.
std::string format_with_commas(int64_t number);

/// Returns the number and the noun, with an s unless the number is 1: "1 tile", "2,600 tiles".
/// REQUIRES: number >= 0.
std::string pluralize(int64_t number, const char* noun);

/// Returns a rounded count: 2246272880 → "2.25 billion", 1300000 → "1.3 million". Counts below a
/// million are exact, with commas. REQUIRES: number >= 0.
std::string format_rounded_count(int64_t number);

/// Returns the integer after `prefix` in `text`: 7 for "step-7" and the prefix "step-". Returns
/// nothing if `text` does not begin with the prefix or if the rest is not a 64-bit integer.
std::optional<int64_t> parse_int_after_prefix(std::string_view prefix, std::string_view text);

/// Returns the current date in the local time zone, such as "2026-11-22".
std::string get_current_date();

/// Returns true for valid UTF-8.
bool is_utf8(std::string_view text);

/// Length of excerpts in messages: an excerpt and its message fit on one line or two of a terminal.
inline constexpr size_t kMaxExcerptCharacters = 120;

/// Returns untrusted text (an id, a path, a name) as valid UTF-8 for one line of a terminal, a log
/// or a report. Escapes invalid bytes (\xNN), line breaks (\n), control characters (\t, \x1b) and
/// characters that change the direction of text (\u202e). Backslashes are unchanged, so the result
/// cannot be converted back.
std::string to_printable(std::string_view text);

/// Same as to_printable(), but keeps line breaks.
std::string to_printable_lines(std::string_view text);

/// Same as to_printable_lines(), but indents each line after the first by at least two spaces, so
/// that no line looks like a separate message.
std::string to_printable_message(std::string_view text);

/// Returns to_printable() of the first `max_characters` characters (code points) of `text`,
/// followed by "…" if the text is longer.
std::string make_excerpt(std::string_view text, size_t max_characters = kMaxExcerptCharacters);

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
