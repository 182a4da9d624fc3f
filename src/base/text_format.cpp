#include "vlmtrain/base/text_format.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <ctime>
#include <system_error>

namespace vlmtrain {

std::string format_bytes(int64_t bytes) {
  constexpr std::array kByteUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit_index = 0;
  while (unit_index + 1 < kByteUnits.size() && (value >= 1024 || value <= -1024)) {
    value /= 1024;
    ++unit_index;
  }
  return fmt::format("{:.1f} {}", value, kByteUnits[unit_index]);
}

std::string format_with_commas(int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", format_with_commas(number / 1000), number % 1000);
}

std::string pluralize(int64_t number, const char* noun) {
  return fmt::format("{} {}{}", format_with_commas(number), noun, number == 1 ? "" : "s");
}

std::string format_rounded_count(int64_t number) {
  const auto value = static_cast<double>(number);
  if (value >= 1e9) return fmt::format("{:.2f} billion", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} million", value / 1e6);
  return format_with_commas(number);
}

std::optional<int64_t> parse_int_after_prefix(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  int64_t number = 0;
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + prefix.size(), text_end, number);
  return error == std::errc() && end == text_end ? std::optional(number) : std::nullopt;
}

std::string get_current_date() {
  const std::time_t now = std::time(nullptr);
  std::tm local_time{};
  localtime_r(&now, &local_time);
  constexpr int kTmBaseYear = 1900;
  return fmt::format("{:04}-{:02}-{:02}", local_time.tm_year + kTmBaseYear, local_time.tm_mon + 1, local_time.tm_mday);
}

}  // namespace vlmtrain
