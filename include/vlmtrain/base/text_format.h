#pragma once

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

}  // namespace vlmtrain
